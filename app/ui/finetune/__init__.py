"""The finetune wizard: seven steps from a file of examples to a faster model."""
