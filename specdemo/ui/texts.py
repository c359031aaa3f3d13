"""Every word the page shows, in one place, by key; a second language is a second table."""

EN = {
    "title": "Speculative decoding, side by side",
    "subtitle": "One prompt, two paths, one device. Both paths give the target model's own answer; "
    "the speculative one asks a cheaper source what may come next and lets the target check it in one pass.",
    "race": "Race",
    "prompt": "Prompt",
    "prompt_placeholder": "Ask something, or begin a sentence…",
    "examples": "Examples",
    "run": "Run",
    "stop": "Stop",
    "save": "Save this race (JSON)",
    "settings": "Settings",
    "pair": "Model pair",
    "mode": "Who drafts",
    "mode_ngram": "n-gram lookup",
    "mode_chain": "draft model",
    "dtype": "Precision",
    "dtype_info": "auto: bf16 where the processor computes in it, else fp32",
    "draft_length": "Draft length",
    "draft_length_info": "tokens drafted a step, at most",
    "max_new_tokens": "New tokens",
    "seed": "Seed",
    "temperature": "Temperature",
    "temperature_info": "0 is greedy",
    "top_p": "Top-p",
    "top_p_info": "1 is off",
    "top_k": "Top-k",
    "top_k_info": "0 is off",
    "chat_template": "Ask as a chat turn",
    "chat_template_info": "off: the model continues the text",
    "plain": "Plain",
    "speculative": "Speculative",
    "by_draft": "draft model",
    "by_ngram": "n-gram",
    "by_target": "target",
    "figure_speed_up": "Speed-up",
    "waiting": "Waiting for the device",
    "loading": "Loading the models",
    "running": "Running",
    "stopped": "Stopped.",
    "stopped_early": "Stopped before the first token.",
    "broken": "Something went wrong on our side; the race was given up. Run it again.",
    "queue_full": "Too many visitors are waiting; try again in a minute.",
    "chart_tokens": "Tokens",
    "chart_rate": "Decode tokens/s so far",
    "chart_latency": "Milliseconds per token",
    "chart_memory": "Memory, MB",
    "own_clock": "own clock, s",
    "device_time": "device time of both paths, s",
    "series_target": "target weights",
    "series_draft": "draft weights",
    "series_plain_cache": "plain cache",
    "series_speculative_cache": "speculative cache",
    "series_process": "process",
    "series_device": "device",
    "finish_eos": "end of text",
    "finish_length": "length reached",
}

# The five prompts of the article that this demo sets out from.
EXAMPLES = [
    "The future of artificial intelligence is ",
    "Machine learning is transforming the world by ",
    "Natural language processing enables computers to understand ",
    "Generative models like GPT-3 can create ",
    "AI ethics and fairness are important considerations for ",
]


def text(key: str) -> str:
    """The words for `key`. Raises KeyError for an unknown one."""
    return EN[key]
