"""An HTTP server with OpenAI's completions and chat completions, over one engine."""
