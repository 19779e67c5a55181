"""The inspector's page: views of one recorded reply that share a selection."""
