#include "trainer/loop/model_options.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "model/files/config.h"

namespace tdock::trainer {

std::string RopeOverride::json() const {
  if (type.empty()) return "";
  nlohmann::json json = {{"rope_type", type}};
  if (type != "default") json["factor"] = factor;
  if (original_max_position_embeddings > 0) json["original_max_position_embeddings"] = original_max_position_embeddings;
  if (type == "llama3") {
    json["low_freq_factor"] = low_freq_factor;
    json["high_freq_factor"] = high_freq_factor;
  }
  if (type == "yarn") {
    if (attention_factor > 0) json["attention_factor"] = attention_factor;
    json["beta_fast"] = beta_fast;
    json["beta_slow"] = beta_slow;
  }
  return JsonText(json);
}

absl::Status ModelOptions::Apply(uint64_t lora_seed, model::Decoder& decoder) const {
  decoder.SetComputeType(compute_dtype);
  decoder.SetBatchInvariant(batch_invariant);
  decoder.SetRecomputed(recomputed);
  decoder.SetDropout(dropout);
  if (lora_rank == 0) return absl::OkStatus();
  model::LoraConfig lora{.rank = lora_rank, .alpha = lora_alpha, .dropout = lora_dropout};
  const auto names_in = [](absl::string_view listed) {
    std::vector<std::string> names;
    for (const absl::string_view name : absl::StrSplit(listed, ',', absl::SkipWhitespace())) {
      names.emplace_back(absl::StripAsciiWhitespace(name));
    }
    return names;
  };
  lora.targets = names_in(target_modules);
  lora.saved = names_in(modules_to_save);
  TDOCK_RETURN_IF_ERROR(Annotate(decoder.CheckSaved(lora), "model.modules_to_save"));
  return Annotate(decoder.AddAdapters(lora, lora_seed), "model.target_modules");
}

void BindModelOptions(config::Spec& spec, const std::string& prefix, ModelOptions& o) {
  using model::Recomputed;
  spec.Choice(prefix + "compute_dtype", &o.compute_dtype,
              {{"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}, {"float64", at::kDouble}},
              "Precision of activations and matrix products. Norms, softmax and the optimizer stay in float32; "
              "float64, for comparisons, is that of all of them. float16 has a loss scale (optim).");
  spec.Choice(
      prefix + "param_dtype", &o.param_dtype, {{"float32", at::kFloat}, {"bfloat16", at::kBFloat16}},
      "Dtype of the weights while they are trained. bfloat16 (with model.compute_dtype bfloat16) takes half the "
      "memory: there is no copy in float32, and each step rounds at random, so that small changes count on average. "
      "Adapters and the optimizer stay in float32.");
  spec.Check({prefix + "param_dtype", prefix + "compute_dtype"}, [&o, prefix]() -> std::vector<std::string> {
    if (o.param_dtype == at::kFloat || o.param_dtype == o.compute_dtype) return {};
    return {absl::StrCat(
        "each pass would keep a converted copy of the weights, which takes more memory than weights of float32; set ",
        prefix, "compute_dtype to bfloat16, too")};
  });
  spec.Bool(
      prefix + "batch_invariant", &o.batch_invariant,
      "Compute each token the same, bit for bit, whatever else is in the batch, so that rollout and training agree "
      "on every log-probability. On the CPU in float32 or bfloat16; with other devices and dtypes it has no effect. "
      "false: libtorch multiplies.");
  spec.Choice(
      prefix + "recompute", &o.recomputed,
      {{"nothing", Recomputed::kNothing},
       {"attention_core", Recomputed::kAttentionCore},
       {"mlp", Recomputed::kMlp},
       {"attention_core_and_mlp", Recomputed::kAttentionCoreAndMlp},
       {"layers", Recomputed::kLayers}},
      "Activation checkpointing: what of each layer is recomputed for the gradients instead of being kept in memory.");
  spec.Float(prefix + "dropout", &o.dropout,
             "Share of the embeddings, and of what attention and mlp add to them, that is dropped at random when "
             "gradients "
             "are computed, and never otherwise.")
      .AtLeast(0)
      .LessThan(1);
  const std::string rope = prefix + "override_config.rope_scaling.";
  spec.Choice(rope + "type", &o.rope_scaling.type,
              {{"none", std::string()},
               {"default", std::string("default")},
               {"linear", std::string("linear")},
               {"dynamic", std::string("dynamic")},
               {"llama3", std::string("llama3")},
               {"yarn", std::string("yarn")}},
              "Rope scaling instead of config.json's; none: config.json's. Saved with the checkpoint.");
  spec.Alias(rope + "rope_type", rope + "type");  // model files have either
  spec.Float(rope + "factor", &o.rope_scaling.factor,
             "Factor by which sequences may be longer, at least 1; required for every type but default.")
      .AtLeast(0);
  spec.Int(rope + "original_max_position_embeddings", &o.rope_scaling.original_max_position_embeddings,
           "Longest sequence of the pre-training, for llama3 and yarn; 0: config.json's max_position_embeddings.")
      .AtLeast(0)
      .AtMost(model::kMaxPositions);
  spec.Float(rope + "low_freq_factor", &o.rope_scaling.low_freq_factor, "Of llama3.").MoreThan(0);
  spec.Float(rope + "high_freq_factor", &o.rope_scaling.high_freq_factor, "Of llama3.").MoreThan(0);
  spec.Float(rope + "attention_factor", &o.rope_scaling.attention_factor,
             "For yarn: the factor that multiplies queries and keys; 0: 0.1·ln(factor) + 1.")
      .AtLeast(0);
  spec.Float(rope + "beta_fast", &o.rope_scaling.beta_fast,
             "For yarn: rotations above which frequencies are not interpolated.")
      .MoreThan(0);
  spec.Float(rope + "beta_slow", &o.rope_scaling.beta_slow,
             "For yarn: rotations below which frequencies are fully interpolated.")
      .MoreThan(0);
  spec.Int(prefix + "lora_rank", &o.lora_rank,
           "Rank of low-rank adapters; if set, only they and modules_to_save are trained; 0: no adapters.")
      .AtLeast(0)
      .AtMost(1 << 16);
  spec.Float(prefix + "lora_alpha", &o.lora_alpha, "Adapters are scaled by this divided by their rank.").MoreThan(0);
  spec.Float(prefix + "lora_dropout", &o.lora_dropout,
             "Share of what goes into adapters that is dropped at random when gradients are computed.")
      .AtLeast(0)
      .LessThan(1);
  spec.String(prefix + "target_modules", &o.target_modules,
              "Names of the linear layers that get adapters; empty: all but the head.")
      .OrList();
  spec.String(prefix + "modules_to_save", &o.modules_to_save,
              "Names of the modules that are trained whole beside the adapters, as in PEFT: norms, the embedding, the "
              "head. A value head always is; empty: no others.")
      .OrList();
  spec.Choice(
      prefix + "save_dtype", &o.save_dtype,
      {{"auto", std::nullopt}, {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}},
      "Dtype of the weights in the checkpoint that is left for use; auto: the model's own, as config.json says, "
      "and float32 of a new model. The state that a run resumes from is exact.");
  for (const char* key : {"compute_dtype", "param_dtype", "save_dtype"}) {
    spec.AliasValue(prefix + key, "bf16", "bfloat16");
    spec.AliasValue(prefix + key, "fp16", "float16");
    spec.AliasValue(prefix + key, "fp32", "float32");
  }
  spec.Check({rope + "type", rope + "factor"}, [&o]() -> std::vector<std::string> {
    if (o.rope_scaling.type.empty() || o.rope_scaling.type == "default" || o.rope_scaling.factor >= 1) return {};
    return {"must be at least 1 with a rope scaling"};
  });
  const auto no_scaling = [&o] { return o.rope_scaling.type.empty() || o.rope_scaling.type == "default"; };
  spec.Unused({rope + "factor"}, no_scaling, "given without a rope scaling");
  const auto no_original = [&o] { return o.rope_scaling.type != "llama3" && o.rope_scaling.type != "yarn"; };
  spec.Unused({rope + "original_max_position_embeddings"}, no_original,
              "given for a rope scaling that does not have it");
  const auto no_bands = [&o] { return o.rope_scaling.type != "llama3"; };
  spec.Unused({rope + "low_freq_factor", rope + "high_freq_factor"}, no_bands,
              "given for a rope scaling that does not have it");
  const auto no_ramp = [&o] { return o.rope_scaling.type != "yarn"; };
  spec.Unused({rope + "attention_factor", rope + "beta_fast", rope + "beta_slow"}, no_ramp,
              "given for a rope scaling that does not have it");
  spec.Unused(
      {prefix + "lora_alpha", prefix + "lora_dropout", prefix + "target_modules", prefix + "modules_to_save"},
      [&o] { return o.lora_rank == 0; }, absl::StrCat("given without adapters (", prefix, "lora_rank = 0)"));
}

}  // namespace tdock::trainer
