"""The models and pairs on offer, one row each, and what can be said of them before a file of theirs is read."""

from dataclasses import dataclass
from pathlib import Path

from specdemo.models.quantize import Quantization

WEIGHTS = Path(__file__).parent / "weights"  # what was made for the embedded target; see docs/draft.md
GB = 1e9  # bytes


@dataclass(frozen=True, slots=True)
class Model:
    """Counts that follow from a model's config; memory follows from them.

    parameters: tied weights once. linear: those of them in layers that bitsandbytes quantizes. cached: numbers that
    the key-value cache keeps for one token. context: tokens. gated: its licence must be accepted on the hub first, as
    far as known here; the preflight asks the hub. chat: it has a chat template, else the prompt goes in as it is.
    """

    id: str
    parameters: int
    linear: int
    cached: int
    context: int
    gated: bool = False
    chat: bool = True

    def weight_bytes(self, element: int, quantization: Quantization, target: bool = True) -> float:
        """Bytes of the weights; element: bytes of an unquantized weight."""
        quantized = self.linear * quantization.bytes_per_weight if quantization.applies(target) else 0.0
        return quantized + element * (self.parameters - (self.linear if quantized else 0))


@dataclass(frozen=True, slots=True)
class Pair:
    """target, draft: model ids or directories; "embedded" is the target that is fetched from its package, and
    "embedded-draft" the small model that was distilled for it.

    draft None: the pair speculates without a draft model. ngram: table of an n-gram model over the target's own
    answers; None leaves it to what the text so far repeats. head: a feature head that continues the target's states.
    """

    name: str
    title: str
    target: str
    draft: str | None = None
    ngram: Path | None = None
    head: Path | None = None

    @property
    def models(self) -> tuple[Model, ...]:
        """What the table knows of target and draft; nothing of a model that is not listed."""
        return tuple(MODELS[name] for name in (self.target, self.draft) if name in MODELS)

    @property
    def gated(self) -> tuple[str, ...]:
        """Ids whose licence must be accepted first."""
        return tuple(model.id for model in self.models if model.gated)

    @property
    def chat(self) -> bool:
        """Whether the target answers as a chat model."""
        return bool(self.models) and self.models[0].chat

    def memory_bytes(self, element: int = 2, quantization: Quantization | None = None, tokens: int = 2048) -> float:
        """Bytes of all weights, of both paths' caches of the target and of one of the draft, at `tokens` of context.

        element: bytes of a number that is not quantized, 2 for bf16.
        """
        quantization, total = quantization or Quantization(), 0.0
        for model, caches in zip(self.models, (2, 1), strict=False):
            total += model.weight_bytes(element, quantization, target=caches == 2)
            total += caches * element * model.cached * min(tokens, model.context)
        return total

    def hardware(self, quantization: Quantization | None = None) -> str | None:
        """The smallest of HARDWARE that holds the pair in bf16; None where none does."""
        needed = self.memory_bytes(2, quantization) / ROOM
        return next((name for name, size in HARDWARE.items() if size * GB >= needed), None)


ROOM = 0.85  # share of a device that weights and caches may fill: kernels, activations and the system want the rest
HARDWARE = {
    "two cores and 16 GB": 16,
    "24 GB GPU (RTX 3090 or 4090, L4, A10G)": 24,
    "48 GB GPU (L40S, RTX 6000)": 48,
    "80 GB GPU (A100, H100)": 80,
    "141 GB GPU (H200), or two of 80 GB": 141,
}  # GB

MODELS = {
    model.id: model
    for model in [
        #     id                                     parameters      linear          cached   context
        Model("embedded", 134_515_008, 106_168_320, 11_520, 8_192),
        Model("embedded-draft", 42_472_512, 14_155_776, 1_536, 8_192),
        Model("google/gemma-2-9b-it", 9_241_705_984, 8_323_596_288, 172_032, 8_192, gated=True),
        Model("google/gemma-2-2b-it", 2_614_341_888, 2_024_275_968, 53_248, 8_192, gated=True),
        Model("google/gemma-7b", 8_537_680_896, 7_751_073_792, 229_376, 8_192, gated=True, chat=False),
        Model("google/gemma-2b", 2_506_172_416, 1_981_808_640, 9_216, 8_192, gated=True, chat=False),
        Model("mistralai/Mixtral-8x7B-Instruct-v0.1", 46_702_792_704, 1_342_177_280, 65_536, 32_768),
        Model("mistralai/Mistral-7B-Instruct-v0.1", 7_241_732_096, 6_979_321_856, 65_536, 32_768),
        Model("mistralai/Mistral-7B-Instruct-v0.2", 7_241_732_096, 6_979_321_856, 65_536, 32_768),
        Model("EleutherAI/pythia-12b", 11_846_072_320, 11_324_620_800, 368_640, 2_048, chat=False),
        Model("EleutherAI/pythia-70m", 70_426_624, 18_874_368, 6_144, 2_048, chat=False),
        Model("meta-llama/Llama-2-13b-chat-hf", 13_015_864_320, 12_687_769_600, 409_600, 4_096, gated=True),
        Model("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1_100_048_384, 968_884_224, 11_264, 2_048),
        Model("openai-community/gpt2-large", 774_030_080, 707_788_800, 92_160, 1_024, chat=False),
        Model("distilbert/distilgpt2", 81_912_576, 42_467_328, 9_216, 1_024, chat=False),
        Model("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 6_525_288_448, 28_672, 32_768),
        Model("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768, 357_826_560, 6_144, 32_768),
        Model("Qwen/Qwen3-8B", 8_190_735_360, 6_945_767_424, 73_728, 40_960),
        Model("Qwen/Qwen3-0.6B", 596_049_920, 440_401_920, 57_344, 40_960),
        Model("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248, 6_979_321_856, 65_536, 131_072, gated=True),
        Model("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824, 2_818_572_288, 57_344, 131_072, gated=True),
        Model("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400, 973_078_528, 16_384, 131_072, gated=True),
        Model("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384, 1_610_612_736, 98_304, 8_192),
        Model("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008, 106_168_320, 11_520, 8_192),
    ]
}

PAIRS = {
    pair.name: pair
    for pair in [
        Pair(
            "embedded",
            "SmolLM2-135M-Instruct (embedded)",
            "embedded",
            "embedded-draft",
            ngram=WEIGHTS / "embedded-ngram.safetensors",
            head=WEIGHTS / "embedded-head.safetensors",
        ),
        Pair(
            "smollm2",
            "SmolLM2 1.7B + 135M (instruct)",
            "HuggingFaceTB/SmolLM2-1.7B-Instruct",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        Pair("qwen3", "Qwen3 8B + 0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"),
        Pair("qwen2.5", "Qwen2.5 7B + 0.5B (instruct)", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
        Pair(
            "llama3-8b",
            "Llama 3.1 8B + 3.2 1B (instruct)",
            "meta-llama/Llama-3.1-8B-Instruct",
            "meta-llama/Llama-3.2-1B-Instruct",
        ),
        Pair(
            "llama3-3b",
            "Llama 3.2 3B + 1B (instruct)",
            "meta-llama/Llama-3.2-3B-Instruct",
            "meta-llama/Llama-3.2-1B-Instruct",
        ),
        Pair("gemma2", "Gemma 2 9B + 2B (instruct)", "google/gemma-2-9b-it", "google/gemma-2-2b-it"),
        Pair("gemma", "Gemma 7B + 2B", "google/gemma-7b", "google/gemma-2b"),
        Pair(
            "mixtral",
            "Mixtral 8x7B + Mistral 7B v0.1 (instruct)",
            "mistralai/Mixtral-8x7B-Instruct-v0.1",
            "mistralai/Mistral-7B-Instruct-v0.1",
        ),
        Pair(
            "mixtral-v0.2",
            "Mixtral 8x7B + Mistral 7B v0.2 (instruct)",
            "mistralai/Mixtral-8x7B-Instruct-v0.1",
            "mistralai/Mistral-7B-Instruct-v0.2",
        ),
        Pair("pythia", "Pythia 12B + 70M", "EleutherAI/pythia-12b", "EleutherAI/pythia-70m"),
        Pair(
            "llama2",
            "Llama 2 13B (chat) + TinyLlama 1.1B (chat)",
            "meta-llama/Llama-2-13b-chat-hf",
            "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        ),
        Pair("gpt2", "GPT-2 Large + DistilGPT-2", "openai-community/gpt2-large", "distilbert/distilgpt2"),
    ]
}
