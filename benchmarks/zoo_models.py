"""Which architectures are in the zoo? Small ones of every family, with activations large enough to be moved."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Batch = Any


@dataclass
class Training:
    """Models and optimizers, a step that takes a batch and returns a loss, and batches."""

    models: tuple[Any, ...]
    optimizers: tuple[Any, ...]
    step: Callable[[Batch], Any]
    batches: list[Batch]


@dataclass(frozen=True)
class Entry:
    """An architecture: the family that it is of, and what makes a training of it."""

    name: str
    family: str
    make: Callable[[], Training]


ARCHITECTURES: dict[str, Entry] = {}
TEXT = {"vocab_size": 1000, "max_position_embeddings": 256}
SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
GROUPED = {"num_key_value_heads": 2}


def entry(name: str, family: str) -> Callable[[Callable[[], Training]], Callable[[], Training]]:
    """Put what makes a training into the zoo."""

    def put(make: Callable[[], Training]) -> Callable[[], Training]:
        ARCHITECTURES[name] = Entry(name, family, make)
        return make

    return put


def trained(model: Any, loss: Callable[[Any, Batch], Any], batch: Callable[[], Batch]) -> Training:
    """The ordinary training of a model."""
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(given: Batch) -> Any:
        optimizer.zero_grad()
        found = loss(model, given)
        found.backward()
        optimizer.step()
        return found

    return Training((model,), (optimizer,), step, [batch() for _ in range(3)])


def seeded() -> Any:
    """Seed torch and return it."""
    import torch

    torch.manual_seed(0)
    return torch


# transformers ----------------------------------------------------------------------------------------------------


def of_transformers(
    name: str, family: str, kind: str, options: dict[str, Any], batch: Callable[[Any], dict[str, Any]]
) -> None:
    """A model of transformers that returns its own loss."""

    @entry(name, family)
    def make() -> Training:
        import transformers

        torch = seeded()
        network = getattr(transformers, kind)
        model = network(network.config_class(**options))
        return trained(model, lambda found, given: found(**given).loss, lambda: batch(torch))


def text(torch: Any, rows: int = 8, length: int = 128) -> dict[str, Any]:
    """Words that are to be said again."""
    words = torch.randint(5, 1000, (rows, length))
    return {"input_ids": words, "labels": words}


def labelled_text(torch: Any) -> dict[str, Any]:
    """Words with one label a text, some of them padding."""
    mask = torch.ones(8, 128, dtype=torch.long)
    mask[1:, 100:] = 0
    return {"input_ids": text(torch)["input_ids"], "attention_mask": mask, "labels": torch.randint(0, 2, (8,))}


def pictures(torch: Any, size: int = 64, rows: int = 16) -> dict[str, Any]:
    """Pictures with a label each."""
    return {"pixel_values": torch.randn(rows, 3, size, size), "labels": torch.randint(0, 2, (rows,))}


LLAMA = {**TEXT, **SMALL, **GROUPED}
for title, kind in (
    ("llama", "Llama"),
    ("mistral", "Mistral"),
    ("qwen2", "Qwen2"),
    ("qwen3", "Qwen3"),
    ("gemma", "Gemma"),
    ("phi3", "Phi3"),
    ("olmo2", "Olmo2"),
    ("smollm3", "SmolLM3"),
):
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    heads = {"head_dim": 32} if title in ("qwen3", "gemma", "mistral") else {}
    of_transformers(title, "text", f"{kind}ForCausalLM", {**LLAMA, **special, **heads}, text)
of_transformers(
    "gpt2",
    "text",
    "GPT2LMHeadModel",
    {"vocab_size": 1000, "n_positions": 256, "n_embd": 128, "n_layer": 4, "n_head": 4},
    text,
)
of_transformers("gpt_neox", "text", "GPTNeoXForCausalLM", {**TEXT, **SMALL}, text)
of_transformers(
    "opt",
    "text",
    "OPTForCausalLM",
    {
        **TEXT,
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "ffn_dim": 512,
        "word_embed_proj_dim": 128,
    },
    text,
)
of_transformers(
    "bloom",
    "text",
    "BloomForCausalLM",
    {"vocab_size": 1000, "hidden_size": 128, "n_layer": 4, "n_head": 4},
    text,
)
of_transformers("bert", "text", "BertForMaskedLM", {**TEXT, **SMALL}, text)
of_transformers(
    "roberta",
    "text",
    "RobertaForSequenceClassification",
    {**TEXT, **SMALL, "max_position_embeddings": 300},
    labelled_text,
)
of_transformers(
    "electra",
    "text",
    "ElectraForSequenceClassification",
    {**TEXT, **SMALL, "embedding_size": 64},
    labelled_text,
)
of_transformers("albert", "text", "AlbertForMaskedLM", {**TEXT, **SMALL, "embedding_size": 64}, text)
of_transformers(
    "distilbert",
    "text",
    "DistilBertForSequenceClassification",
    {"vocab_size": 1000, "dim": 128, "n_layers": 4, "n_heads": 4, "hidden_dim": 512},
    labelled_text,
)
of_transformers("deberta_v2", "text", "DebertaV2ForSequenceClassification", {**TEXT, **SMALL}, labelled_text)
of_transformers(
    "t5",
    "text",
    "T5ForConditionalGeneration",
    {
        "vocab_size": 1000,
        "d_model": 128,
        "d_kv": 32,
        "d_ff": 512,
        "num_layers": 3,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    text,
)
of_transformers(
    "bart",
    "text",
    "BartForConditionalGeneration",
    {
        **TEXT,
        "d_model": 128,
        "encoder_layers": 3,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 512,
        "decoder_ffn_dim": 512,
    },
    text,
)
of_transformers(
    "mixtral",
    "mixture of experts",
    "MixtralForCausalLM",
    {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
    text,
)
of_transformers(
    "mamba",
    "state space",
    "MambaForCausalLM",
    {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
    lambda torch: text(torch, 8, 32),
)
of_transformers("vit", "vision", "ViTForImageClassification", {**SMALL, "image_size": 64, "patch_size": 8}, pictures)
of_transformers("deit", "vision", "DeiTForImageClassification", {**SMALL, "image_size": 64, "patch_size": 8}, pictures)
of_transformers("beit", "vision", "BeitForImageClassification", {**SMALL, "image_size": 64, "patch_size": 8}, pictures)
of_transformers(
    "swin",
    "vision",
    "SwinForImageClassification",
    {"image_size": 64, "patch_size": 4, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": 4},
    pictures,
)
of_transformers(
    "convnext",
    "vision",
    "ConvNextForImageClassification",
    {"hidden_sizes": [32, 64, 96, 128], "depths": [2, 2, 2, 2], "drop_path_rate": 0.1},
    pictures,
)
of_transformers(
    "resnet",
    "vision",
    "ResNetForImageClassification",
    {"embedding_size": 32, "hidden_sizes": [64, 96, 128, 160], "depths": [2, 2, 2, 2]},
    pictures,
)
of_transformers("mobilenet_v2", "vision", "MobileNetV2ForImageClassification", {}, pictures)
of_transformers(
    "segformer",
    "vision",
    "SegformerForSemanticSegmentation",
    {"hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 1, 1], "decoder_hidden_size": 64},
    lambda torch: {"pixel_values": torch.randn(4, 3, 128, 128), "labels": torch.randint(0, 2, (4, 128, 128))},
)
of_transformers(
    "wav2vec2",
    "speech",
    "Wav2Vec2ForSequenceClassification",
    {
        **SMALL,
        "conv_dim": [64, 64],
        "conv_kernel": [10, 3],
        "conv_stride": [5, 2],
        "num_feat_extract_layers": 2,
        "apply_spec_augment": False,
    },
    lambda torch: {"input_values": torch.randn(4, 4000), "labels": torch.randint(0, 2, (4,))},
)
of_transformers(
    "whisper",
    "speech",
    "WhisperForConditionalGeneration",
    {
        "vocab_size": 1000,
        "d_model": 128,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 256,
        "decoder_ffn_dim": 256,
        "max_source_positions": 200,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    },
    lambda torch: {"input_features": torch.randn(4, 80, 400), "labels": torch.randint(5, 1000, (4, 40))},
)
of_transformers(
    "patchtst",
    "time series",
    "PatchTSTForPrediction",
    {
        "num_input_channels": 4,
        "context_length": 256,
        "prediction_length": 24,
        "patch_length": 8,
        "patch_stride": 8,
        "d_model": 64,
        "num_hidden_layers": 3,
        "ffn_dim": 128,
    },
    lambda torch: {"past_values": torch.randn(16, 256, 4), "future_values": torch.randn(16, 24, 4)},
)


# monai -----------------------------------------------------------------------------------------------------------


def monai_network(name: str) -> Callable[..., Any]:
    """Return a class of monai's networks."""
    return getattr(import_module("monai.networks.nets"), name)


def of_monai(name: str, options: dict[str, Any], size: int = 32, *, channels: int = 1, first: bool = False) -> None:
    """A network of monai that says what each voxel is."""

    @entry(f"monai {name}", "3D")
    def make() -> Training:
        network = monai_network(name)
        torch = seeded()
        model = network(**options)

        def loss(found: Any, given: Any) -> Any:
            said = found(given[0])
            said = said[0] if first else said
            return torch.nn.functional.cross_entropy(said, given[1])

        def batch() -> Any:
            return torch.randn(2, channels, size, size, size), torch.randint(0, 2, (2, size, size, size))

        return trained(model, loss, batch)


PLANES = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
of_monai("UNet", {**PLANES, "channels": (8, 16, 32), "strides": (2, 2), "num_res_units": 2, "dropout": 0.1})
of_monai("BasicUNet", {**PLANES, "features": (8, 8, 16, 32, 64, 8)})
of_monai("SegResNet", {**PLANES, "init_filters": 8})
of_monai("UNETR", {**PLANES, "img_size": 32, "feature_size": 8, "hidden_size": 96, "mlp_dim": 192, "num_heads": 4})
of_monai("SwinUNETR", {**PLANES, "feature_size": 12}, 64)
of_monai("VNet", PLANES)
of_monai("AttentionUnet", {**PLANES, "channels": (8, 16, 32), "strides": (2, 2)})
of_monai(
    "DynUNet",
    {**PLANES, "kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [8, 16, 32]},
)


@entry("monai DenseNet121", "3D")
def densenet() -> Training:
    """A classifier of volumes."""
    torch = seeded()

    model = monai_network("DenseNet121")(spatial_dims=3, in_channels=1, out_channels=2, init_features=16, growth_rate=8)
    return trained(
        model,
        lambda found, given: torch.nn.functional.cross_entropy(found(given[0]), given[1]),
        lambda: (torch.randn(2, 1, 32, 32, 32), torch.randint(0, 2, (2,))),
    )


@entry("monai DiffusionModelUNet", "diffusion")
def diffusion() -> Training:
    """A network that tells noise from a picture, at a random time."""
    torch = seeded()

    model = monai_network("DiffusionModelUNet")(
        spatial_dims=2,
        in_channels=1,
        out_channels=1,
        channels=(32, 64),
        attention_levels=(False, True),
        num_res_blocks=1,
        num_head_channels=32,
        norm_num_groups=16,
    )

    def loss(found: Any, given: Any) -> Any:
        noise, times = torch.randn_like(given), torch.randint(0, 1000, (given.shape[0],))
        keep = (times / 1000.0).cos().view(-1, 1, 1, 1)
        return torch.nn.functional.mse_loss(found(keep * given + (1 - keep) * noise, timesteps=times), noise)

    return trained(model, loss, lambda: torch.randn(4, 1, 32, 32))


# plain torch -----------------------------------------------------------------------------------------------------


@entry("lstm", "recurrent")
def lstm() -> Training:
    """A language model of stacked LSTM layers."""
    torch = seeded()
    nn = torch.nn
    words, inner, head = (
        nn.Embedding(500, 128),
        nn.LSTM(128, 256, 2, dropout=0.2, batch_first=True),
        nn.Linear(256, 500),
    )
    model = nn.ModuleList([words, inner, head])

    def loss(_found: Any, given: Any) -> Any:
        said = head(inner(words(given[:, :-1]))[0])
        return nn.functional.cross_entropy(said.flatten(0, 1), given[:, 1:].flatten())

    return trained(model, loss, lambda: torch.randint(0, 500, (16, 65)))


@entry("gru seq2seq", "recurrent")
def seq2seq() -> Training:
    """A translator with attention, word by word."""
    torch = seeded()
    nn = torch.nn
    parts = nn.ModuleDict(
        {
            "words": nn.Embedding(500, 128),
            "encoder": nn.GRU(128, 128, batch_first=True),
            "cell": nn.GRUCell(256, 128),
            "head": nn.Linear(128, 500),
        }
    )

    def loss(found: Any, given: Any) -> Any:
        keys, last = found["encoder"](found["words"](given[0]))
        said, total = last[0], 0.0
        for at in range(given[1].shape[1] - 1):
            weights = torch.softmax((keys @ said.unsqueeze(2)).squeeze(2), 1)
            context = (weights.unsqueeze(1) @ keys).squeeze(1)
            said = found["cell"](torch.cat([found["words"](given[1][:, at]), context], 1), said)
            total = total + nn.functional.cross_entropy(found["head"](said), given[1][:, at + 1])
        return total

    return trained(parts, loss, lambda: (torch.randint(0, 500, (32, 40)), torch.randint(0, 500, (32, 12))))


@entry("gan", "GAN")
def gan() -> Training:
    """A generator and a critic with optimizers of their own."""
    torch = seeded()
    nn = torch.nn
    generator = nn.Sequential(
        nn.ConvTranspose2d(32, 64, 4),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(64, 32, 4, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1),
        nn.Tanh(),
    )
    critic = nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1),
        nn.LeakyReLU(0.2, inplace=True),
        nn.utils.parametrizations.spectral_norm(nn.Conv2d(32, 64, 4, 2, 1)),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Flatten(),
        nn.Linear(64 * 64, 1),
    )
    both = [torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999)) for part in (generator, critic)]

    def step(real: Any) -> Any:
        made = generator(torch.randn(real.shape[0], 32, 1, 1))
        both[1].zero_grad()
        judged = nn.functional.softplus(critic(made.detach())).mean() + nn.functional.softplus(-critic(real)).mean()
        judged.backward()
        both[1].step()
        both[0].zero_grad()
        fooled = nn.functional.softplus(-critic(made)).mean()
        fooled.backward()
        both[0].step()
        return judged.detach() + fooled.detach()

    return Training((generator, critic), tuple(both), step, [torch.randn(64, 3, 32, 32) for _ in range(3)])


@entry("graph convolution", "graph")
def graph_network() -> Training:
    """Messages along edges, added up at the nodes."""
    torch = seeded()
    nn = torch.nn
    layers = nn.ModuleList([nn.Linear(128, 128) for _ in range(4)] + [nn.Linear(128, 7)])
    edges = torch.randint(0, 2000, (2, 20000))

    def loss(found: Any, given: Any) -> Any:
        x = given[0]
        for layer in found[:-1]:
            said = torch.zeros_like(x).index_add(0, edges[1], layer(x)[edges[0]])
            x = nn.functional.dropout(torch.relu(x + said), 0.1)
        return nn.functional.cross_entropy(found[-1](x), given[1])

    return trained(layers, loss, lambda: (torch.randn(2000, 128), torch.randint(0, 7, (2000,))))


@entry("detection head", "detection")
def detection() -> Training:
    """Boxes, classes and centers for each place of a feature map, with a focal loss."""
    torch = seeded()
    nn = torch.nn
    body = nn.Sequential(
        *[
            m
            for i in range(4)
            for m in (nn.Conv2d(3 if i == 0 else 32, 32, 3, 1 + (i == 1), 1), nn.GroupNorm(4, 32), nn.SiLU())
        ]
    )
    model = nn.ModuleList([body, nn.Conv2d(32, 5, 3, 1, 1), nn.Conv2d(32, 4, 3, 1, 1)])

    def loss(found: Any, given: Any) -> Any:
        x, classes, boxes = given
        features = found[0](x)
        said, placed = found[1](features), found[2](features).exp()
        chance = said.sigmoid()
        focal = ((1 - chance) ** 2 * classes * -chance.clamp_min(1e-6).log()).mean()
        is_there = classes.amax(1, keepdim=True)
        return focal + (
            nn.functional.smooth_l1_loss(placed, boxes, reduction="none") * is_there
        ).sum() / is_there.sum().clamp_min(1)

    def batch() -> Any:
        return torch.randn(8, 3, 64, 64), (torch.rand(8, 5, 32, 32) > 0.9).float(), torch.rand(8, 4, 32, 32)

    return trained(model, loss, batch)


@entry("vae", "generative")
def vae() -> Training:
    """An autoencoder that draws its code."""
    torch = seeded()
    nn = torch.nn
    encoder = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 64))
    decoder = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 784))
    model = nn.ModuleList([encoder, decoder])

    def loss(_found: Any, x: Any) -> Any:
        mean, log = encoder(x).chunk(2, 1)
        said = decoder(mean + torch.randn_like(mean) * (log / 2).exp())
        return nn.functional.binary_cross_entropy_with_logits(said, x) - (1 + log - mean**2 - log.exp()).mean() / 2

    return trained(model, loss, lambda: torch.rand(1024, 784))


@entry("mlp mixer", "vision")
def mixer() -> Training:
    """Perceptrons over places and over channels in turns."""
    torch = seeded()
    nn = torch.nn
    model = nn.ModuleList(
        [
            nn.Linear(48, 128),
            *(
                nn.ModuleList([nn.LayerNorm(128), nn.Linear(256, 256), nn.LayerNorm(128), nn.Linear(128, 128)])
                for _ in range(4)
            ),
            nn.Linear(128, 10),
        ]
    )

    def loss(found: Any, given: Any) -> Any:
        x = nn.functional.unfold(given[0], 4, stride=4).transpose(1, 2)
        x = found[0](x)
        for block in found[1:-1]:
            x = x + nn.functional.gelu(block[1](block[0](x).transpose(1, 2))).transpose(1, 2)
            x = x + nn.functional.gelu(block[3](block[2](x)))
        return nn.functional.cross_entropy(found[-1](x.mean(1)), given[1])

    return trained(model, loss, lambda: (torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))))


@entry("wavenet", "speech")
def wavenet() -> Training:
    """Dilated convolutions over time with gates."""
    torch = seeded()
    nn = torch.nn
    layers = [nn.Conv1d(32, 64, 2, dilation=2**i) for i in range(6)]
    model = nn.ModuleList([nn.Embedding(256, 32), *layers, nn.Conv1d(32, 256, 1)])

    def loss(found: Any, given: Any) -> Any:
        x = found[0](given[:, :-1]).transpose(1, 2)
        for layer in found[1:-1]:
            said, gate = layer(nn.functional.pad(x, (layer.dilation[0], 0))).chunk(2, 1)
            x = x + said.tanh() * gate.sigmoid()
        return nn.functional.cross_entropy(found[-1](x), given[:, 1:])

    return trained(model, loss, lambda: torch.randint(0, 256, (8, 1001)))


@entry("radiance field", "3D")
def radiance() -> Training:
    """Colors along rays."""
    torch = seeded()
    nn = torch.nn
    model = nn.Sequential(
        *[m for i in range(5) for m in (nn.Linear(36 if i == 0 else 128, 128), nn.ReLU())], nn.Linear(128, 4)
    )

    def loss(found: Any, given: Any) -> Any:
        points, colors = given
        waves = torch.cat([f(points * 2**i) for i in range(6) for f in (torch.sin, torch.cos)], -1)
        said = found(waves)
        seen = 1 - torch.exp(-nn.functional.softplus(said[..., 3]))
        left = torch.cumprod(torch.cat([torch.ones_like(seen[:, :1]), 1 - seen + 1e-10], 1), 1)[:, :-1]
        return nn.functional.mse_loss(((seen * left).unsqueeze(-1) * said[..., :3].sigmoid()).sum(1), colors)

    return trained(model, loss, lambda: (torch.rand(256, 32, 3), torch.rand(256, 3)))
