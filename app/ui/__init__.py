"""The widgets. They show what `app.models` says and send back what a person does, nothing else."""
