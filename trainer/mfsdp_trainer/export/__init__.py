"""What a run leaves behind: the model as transformers opens it, or the adapters that it trained."""
