"""Which steps are typical? Every workload of `benchmarks/workloads` at a size that people train it at."""

from cells import Cell

RESNETS = tuple(
    Cell("resnet.py:resnet", {"depth": depth, "batch": batch})
    for depth, batch in ((50, 256), (101, 128), (152, 64), (200, 64))
)
PICTURES = (
    *RESNETS,
    Cell("inception.py:inception_v3", {"batch": 128}),
    Cell("vgg.py:vgg16", {"batch": 128}),
    Cell("densenet.py:densenet121", {"batch": 128}),
    Cell("deeplab.py:deeplab_v3_plus", {"batch": 16}),
    Cell("pix2pixhd.py:pix2pixhd", {"batch": 4}),
)
VOLUMES = (
    Cell("unet3d.py:unet3d", {"batch": 1, "size": 144}),
    Cell("isensee.py:isensee", {"batch": 1, "size": 160}),
)
TEXTS = (
    Cell("gpt2.py:gpt2", {"size": "small", "batch": 16}),
    Cell("gpt2.py:gpt2", {"size": "medium", "batch": 8}),
    Cell("lstm.py:lstm", {"layers": 2, "batch": 256}),
)
LARGE_TEXTS = (
    Cell("nmt.py:attention_nmt", {"steps": 50, "batch": 128}),
    Cell("bert.py:bert", {"size": "large", "batch": 16}),
    Cell("gpt2.py:gpt2", {"size": "large", "batch": 8}),
    Cell("gpt2.py:gpt2", {"size": "xl", "batch": 4}),
)
"""Steps of over 6,000 ops."""

IRREGULAR = (
    Cell("irregular.py:darts"),
    *(Cell(f"irregular.py:{kind}", {"seed": seed}) for kind in ("randwire", "swiftnet") for seed in range(3)),
)

TRAINING_STEPS = (*PICTURES, *VOLUMES, *TEXTS)
TYPICAL = (*TRAINING_STEPS, *IRREGULAR)
