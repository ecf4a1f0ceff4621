"""CLIP's ResNet compared with an independent implementation of the published architecture."""

import json
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from clip.tiny_clip import in_openai_layout, save_torchscript, tiny_model
from fedcopl.clip.frozen_clip import load_clip
from fedcopl.errors import ModelError

torch.set_num_threads(1)
TINY = {"layers": (1, 2, 1, 2), "width": 8, "image": 64, "output": 40}
RN50 = {"layers": (3, 4, 6, 3), "width": 64, "image": 224, "output": 1024}


class PlainBottleneck(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inplanes, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False), nn.BatchNorm2d(planes)
        self.avgpool = nn.AvgPool2d(stride)
        self.conv3, self.bn3 = nn.Conv2d(planes, planes * 4, 1, bias=False), nn.BatchNorm2d(planes * 4)
        self.downsample = nn.Identity()
        if stride > 1 or inplanes != planes * 4:
            shortcut = nn.Conv2d(inplanes, planes * 4, 1, bias=False)
            parts = {"-1": nn.AvgPool2d(stride), "0": shortcut, "1": nn.BatchNorm2d(planes * 4)}
            self.downsample = nn.Sequential(OrderedDict(parts))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        return torch.relu(self.bn3(self.conv3(self.avgpool(out))) + self.downsample(x))


class PlainPool(nn.Module):
    """Attention pooling by torch's multi-head function with all tokens as queries; the output is that of the mean."""

    def __init__(self, side: int, embed: int, heads: int, output: int):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(side * side + 1, embed) / embed**0.5)
        self.k_proj, self.q_proj, self.v_proj = (nn.Linear(embed, embed) for _ in range(3))
        self.c_proj = nn.Linear(embed, output)
        self.heads = heads

    def forward(self, x: Tensor, prompt: Tensor | None = None) -> Tensor:
        x = x.flatten(2).permute(2, 0, 1)
        x = torch.cat([x.mean(0, keepdim=True), x]) + self.positional_embedding[:, None]
        seen = x if prompt is None else torch.cat([x, prompt[:, None].expand(-1, x.shape[1], -1)])
        answer, _ = F.multi_head_attention_forward(
            x,
            seen,
            seen,
            embed_dim_to_check=x.shape[-1],
            num_heads=self.heads,
            in_proj_weight=None,
            in_proj_bias=torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]),
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0,
            out_proj_weight=self.c_proj.weight,
            out_proj_bias=self.c_proj.bias,
            use_separate_proj_weight=True,
            q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight,
            v_proj_weight=self.v_proj.weight,
            training=False,
        )
        return answer[0]


class PlainResNet(nn.Module):
    def __init__(self, layers: tuple[int, ...], width: int, image: int, output: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width // 2, 3, 2, 1, bias=False), nn.BatchNorm2d(width // 2)
        self.conv2, self.bn2 = nn.Conv2d(width // 2, width // 2, 3, 1, 1, bias=False), nn.BatchNorm2d(width // 2)
        self.conv3, self.bn3 = nn.Conv2d(width // 2, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        inplanes = width
        for place, blocks in enumerate(layers):
            planes, stage = width * 2**place, []
            for block in range(blocks):
                stage.append(PlainBottleneck(inplanes, planes, 2 if place and not block else 1))
                inplanes = planes * 4
            self.add_module(f"layer{place + 1}", nn.Sequential(*stage))
        self.attnpool = PlainPool(image // 32, width * 32, width * 32 // 64, output)

    def grid(self, x: Tensor) -> Tensor:
        for conv, norm in ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)):
            x = torch.relu(norm(conv(x)))
        return self.layer4(self.layer3(self.layer2(self.layer1(F.avg_pool2d(x, 2)))))

    def forward(self, x: Tensor, prompt: Tensor | None = None) -> Tensor:
        return self.attnpool(self.grid(x), prompt)


def plain_resnet(sizes: dict) -> PlainResNet:
    """Random weights, with stored statistics that differ from those of a batch."""
    torch.manual_seed(0)
    plain = PlainResNet(**sizes)
    for name, tensor in plain.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif name.endswith(("running_mean", "bias")):
            tensor.normal_(0, 0.1)
    return plain.eval()


def openai_weights(plain: PlainResNet, output: int) -> dict[str, Tensor]:
    """The ResNet with a text tower of equal feature size."""
    model = tiny_model(text={"num_attention_heads": 1})
    text = {name: value for name, value in in_openai_layout(model).items() if not name.startswith("visual.")}
    text["text_projection"] = torch.randn(64, output, generator=torch.Generator().manual_seed(1)) / 8
    return text | {f"visual.{name}": value for name, value in plain.state_dict().items()}


@pytest.fixture(scope="module")
def plain():
    return plain_resnet(TINY)


@pytest.fixture(scope="module")
def clip(plain, tmp_path_factory):
    file = tmp_path_factory.mktemp("resnet") / "RN.pt"
    torch.save(openai_weights(plain, TINY["output"]), file)
    return load_clip(file)


def pixels(count: int, side: int) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(2))


def test_features_agree(clip, plain):
    with torch.no_grad():
        expected = plain(pixels(3, 64))
    assert expected.std() > 0.05
    assert (clip.encode_image(pixels(3, 64)) - expected).abs().max() <= 2e-5


def test_sizes_come_from_the_weights(clip):
    assert (clip.image_size, clip.vision.prompt_width) == (64, 256)
    assert clip.vision.prompt_levels == clip.vision.usual_prompt_levels == 1
    assert clip.vision.embed(pixels(2, 64)).shape == (2, 1 + 2 * 2, 256)


def test_a_prompt_adds_five_keys_and_values(clip, plain):
    prompt = torch.randn(5, 256, generator=torch.Generator().manual_seed(3), requires_grad=True)
    plain_prompt = prompt.detach().clone().requires_grad_()
    found = clip.vision(clip.vision.embed(pixels(3, 64)), [prompt])
    expected = plain(pixels(3, 64), plain_prompt)
    assert (found - expected).abs().max() <= 2e-5
    found.square().sum().backward()
    expected.square().sum().backward()
    assert torch.allclose(prompt.grad, plain_prompt.grad, rtol=1e-4, atol=1e-6)
    assert (found - clip.encode_image(pixels(3, 64))).abs().max() > 1e-3


def test_a_prompt_of_length_zero_changes_no_bit(clip):
    tokens = clip.vision.embed(pixels(2, 64))
    assert torch.equal(clip.vision(tokens, [torch.empty(0, 256)]), clip.vision(tokens))
    assert torch.equal(clip.vision(tokens, ()), clip.encode_image(pixels(2, 64)))


def test_batch_norm_statistics_do_not_change(clip):
    before = clip.encode_image(pixels(3, 64))
    clip.train()
    assert torch.equal(clip.encode_image(pixels(3, 64)), before)
    clip.eval()


def test_a_torchscript_archive_and_an_open_clip_folder_give_the_same_bits(clip, plain, tmp_path):
    weights = openai_weights(plain, TINY["output"])
    floats = {name: value for name, value in weights.items() if value.is_floating_point()}
    script = load_clip(save_torchscript(floats, tmp_path / "RN.pt"))
    save_file(weights, tmp_path / "open_clip_model.safetensors")
    settings = {
        "embed_dim": 40,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 64, "layers": [1, 2, 1, 2], "width": 8, "patch_size": None},
        "text_cfg": {"context_length": 24, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2},
    }
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings}))
    for other in (script, load_clip(tmp_path)):
        ours, theirs = other.state_dict(), clip.state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "name", ["layer1.0.bn2.running_var", "layer2.0.downsample.0.weight", "attnpool.q_proj.bias", "conv1.weight"]
)
def test_a_missing_weight_is_named(name, plain, tmp_path):
    weights = openai_weights(plain, TINY["output"])
    del weights[f"visual.{name}"]
    torch.save(weights, tmp_path / "RN.pt")
    with pytest.raises(ModelError, match=f"RN.pt: the weight visual.{name} is missing"):
        load_clip(tmp_path / "RN.pt")


def test_towers_with_different_feature_sizes_are_refused(plain, tmp_path):
    torch.save(openai_weights(plain, output=32), tmp_path / "RN.pt")
    with pytest.raises(ModelError, match="images have 40 features, but texts 32"):
        load_clip(tmp_path / "RN.pt")


@pytest.mark.slow
def test_rn50_at_full_size(tmp_path):
    plain = plain_resnet(RN50)
    torch.save(openai_weights(plain, RN50["output"]), tmp_path / "RN50.pt")
    clip = load_clip(tmp_path / "RN50.pt")
    assert clip.vision.prompt_width == 2048
    prompt = torch.randn(5, 2048, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        tokens = clip.vision.embed(pixels(2, 224))
        assert tokens.shape == (2, 50, 2048)
        for given, found in ((None, clip.vision(tokens)), (prompt, clip.vision(tokens, [prompt]))):
            assert (found - plain(pixels(2, 224), given)).abs().max() <= 2e-5
