"""OpenVINO on the CPU: the model that optimum-intel exports, with its keys and values as the model's state."""

from importlib.metadata import version

import numpy as np
import openvino as ov
import openvino.properties as properties
from model import huggingface_folder, made
from openvino import opset13

PRECISIONS = {"float32": ov.Type.f32, "bfloat16": ov.Type.bf16}


def versions():
    return f"openvino {version('openvino')}, optimum-intel {version('optimum-intel')}"


def export(models, model):
    """In float32: the compiler rounds weights to the precision that it is asked for."""
    from optimum.intel import OVModelForCausalLM

    def make(path):
        OVModelForCausalLM.from_pretrained(
            huggingface_folder(models, model, "float32"), export=True, compile=False, load_in_8bit=False
        ).save_pretrained(path)

    return made(models / f"{model}-openvino", make) / "openvino_model.xml"


def keep_last_logits(model):
    """The head then multiplies the last token of each row alone, as OpenVINO GenAI arranges it."""
    head = model.output("logits").get_node().input_value(0).get_node()
    first, last, one, axis = (opset13.constant([value], np.int64) for value in (-1, np.iinfo(np.int64).max, 1, 1))
    last_token = opset13.slice(head.input_value(0), first, last, one, axis)
    head.input(0).replace_source_output(last_token.output(0))
    model.validate_nodes_and_infer_types()


class Decoder:
    def __init__(self, compiled, shape):
        self.request, self.shape = compiled.create_infer_request(), shape

    def start(self, prompts):
        self.request.reset_state()
        self.length = 0
        return self.step(np.array(prompts))

    def step(self, tokens):
        rows, count = tokens.shape
        positions = np.arange(self.length, self.length + count)
        self.length += count
        outputs = self.request.infer({
            "input_ids": tokens,
            "attention_mask": np.ones((rows, self.length), np.int64),
            "position_ids": np.broadcast_to(positions, (rows, count)),
            "beam_idx": np.arange(rows, dtype=np.int32),
        }, share_inputs=True, share_outputs=True)  # fmt: skip
        return outputs["logits"][:, -1].argmax(-1)[:, None]


def settings(shape, threads, models):
    core = ov.Core()
    model = core.read_model(export(models, shape.model))
    keep_last_logits(model)

    def compiled(cache):
        return core.compile_model(model, "CPU", {
            properties.hint.inference_precision(): PRECISIONS[shape.dtype],
            properties.hint.performance_mode(): properties.hint.PerformanceMode.LATENCY,
            properties.hint.kv_cache_precision(): cache,
            properties.inference_num_threads(): threads,
        })  # fmt: skip

    return {
        f"{cache.to_string()} cache": lambda cache=cache: Decoder(compiled(cache), shape)
        for cache in (ov.Type.f16, PRECISIONS[shape.dtype])
    }
