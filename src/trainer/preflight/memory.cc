#include "trainer/preflight/memory.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/process_memory.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "kernels/limits.h"
#include "model/tensor_torch/convert.h"
#include "trainer/loop/feed.h"
#include "trainer/loop/save_freq.h"
#include "trainer/preflight/passes.h"
#include "trainer/stages/block_bytes.h"

namespace tdock::trainer {
namespace {

int64_t BytesOf(const std::vector<at::Tensor>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0}, [](int64_t bytes, const at::Tensor& tensor) {
    return bytes + static_cast<int64_t>(tensor.nbytes());
  });
}

// In float32 at least.
int64_t WideBytesOf(const at::Tensor& tensor) {
  return tensor.numel() * std::max<int64_t>(static_cast<int64_t>(tensor.element_size()), 4);
}

// Both moments of all of `parameters`: see AdamWOptions::moments and BlockBytes.
int64_t MomentBytes(const std::vector<at::Tensor>& parameters, MomentType type) {
  constexpr int64_t kLeastInBytes = 4096;
  int64_t bytes = 0;
  for (const at::Tensor& parameter : parameters) {
    const int64_t blocks = (parameter.numel() + BlockBytes::kBlock - 1) / BlockBytes::kBlock;
    const bool small = type == MomentType::kFloat32 || parameter.numel() < kLeastInBytes;
    bytes += 2 * (small ? WideBytesOf(parameter) : parameter.numel() + 4 * blocks);
  }
  return bytes;
}

// What libtorch's kernels and threads take once they are used, beyond what the process has before. Measured.
constexpr int64_t kLibraries = int64_t{12} << 20;

// The holes in glibc's heaps, one for each thread, between tensors of all sizes that are freed in another order than
// they were made. Measured (tests/nightly/memory.py): a third of what was in the heaps. With adapters as much again,
// because their passes free a large tensor after each one that they keep, and what is made next is smaller or larger.
// Where an mlp is computed again three quarters: its large tensors come and go between small ones that are kept. In
// half precision a sixth; without batch-invariant mode three fifths, because each product of matrices frees what oneDNN
// needs for it, beside the weights that were cast for it and are kept. Where layers are computed again a third.
int64_t HolesBeside(int64_t in_heap, const model::Decoder& decoder) {
  if (!decoder.device().is_cpu()) return 0;
  if (decoder.lora()) return in_heap;
  const model::Recomputed again = decoder.recomputed();
  if (again == model::Recomputed::kMlp || again == model::Recomputed::kAttentionCoreAndMlp) return in_heap * 3 / 4;
  if (again == model::Recomputed::kLayers || !c10::isReducedFloatingType(decoder.compute_type())) return in_heap / 3;
  return decoder.batch_invariant() ? in_heap / 6 : in_heap * 3 / 5;
}

// How ranks divide a model that they train together; one process: not at all.
struct ZeroShares {
  int64_t ranks = 1;
  int64_t zero_stage = 0;

  // What a rank has of something that is divided from `stage` on.
  int64_t Part(int64_t stage, int64_t bytes) const { return zero_stage < stage ? bytes : (bytes + ranks - 1) / ranks; }
  bool splits_weights() const { return ranks > 1 && zero_stage == 3; }
};

// What is held while one part of a run works, beside what is held all the time.
struct Phase {
  std::string when;
  std::vector<MemoryPart> parts;
  std::string keys;  // that make it smaller

  int64_t bytes() const {
    return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                           [](int64_t bytes, const MemoryPart& part) { return bytes + part.bytes; });
  }
};

// The samples of a step, as they will pass through the model.
struct StepSamples {
  std::vector<int32_t> answer;  // stands for every generated one
  std::vector<Sequence> all;
  std::vector<Sequence> mini_batch;
  std::vector<Sequence> ptx;         // of an optimizer step
  std::vector<Sequence> validation;  // those of the data, with their answers; empty where they are not passed
};

class Estimator {
 public:
  Estimator(Recipe& recipe, const RunConfig& config, const RunInputs& inputs,
            std::span<const data::EncodedSample> samples, const Outline& outline,
            const std::map<std::string, Outline>& roles, const std::map<std::string, int64_t>& ranks)
      : config_(config),
        shape_(recipe.shape()),
        inputs_(inputs),
        outline_(outline),
        roles_(roles),
        ranks_(ranks),
        phase_(recipe.phase()),
        device_(inputs.decoder->device()),
        threads_(std::max<int64_t>(config.threads, 1)),
        rows_per_sample_(recipe.samples_per_prompt()) {
    const int64_t batch = config.data.train_batch_size;
    Rng rng(1);
    for (int64_t i = 0; i < batch; ++i) {
      // The first ones once each, then again: a batch may be larger than what was read.
      drawn_.push_back(&samples[static_cast<size_t>(i) % samples.size()]);
    }
    MakeSamples(rng);
  }

  // What is held from the first step on, by a rank that trains.
  std::vector<MemoryPart> Held(int64_t process) const {
    const int64_t weights = BytesOf(inputs_.decoder->parameters());
    const ZeroShares shares = OfPolicy();
    std::vector<MemoryPart> parts = {{"weights", shares.Part(3, weights)}};
    if (shape_.frozen_copies > 0) parts.push_back({"reference", shape_.frozen_copies * weights});
    if (device_.is_cpu() || !shape_.optim.offload) {
      parts.push_back(
          {"optimizer state", shares.Part(1, MomentBytes(outline_.decoder.trainable(), shape_.optim.moment_dtype))});
    }
    if (config_.trainer.ema_decay > 0) parts.push_back({"average of weights", shares.Part(1, WideTrainable())});
    int64_t loaded = weights;  // and so a part of the process
    for (const auto& [name, model] : inputs_.models) {
      const int64_t of_role = BytesOf(model.policy.decoder.parameters());
      const ZeroShares of_ranks = model.role.trained ? OfRole(name) : ZeroShares();
      parts.push_back({absl::StrCat("weights of the ", Spaced(name)), of_ranks.Part(3, of_role)});
      loaded += of_role;
      if (!model.role.trained || (model.role.optim->offload && !device_.is_cpu())) continue;
      parts.push_back(
          {absl::StrCat("optimizer state of the ", Spaced(name)),
           of_ranks.Part(1, MomentBytes(roles_.at(name).decoder.trainable(), model.role.optim->moment_dtype))});
    }
    if (device_.is_cpu()) parts.push_back({"process and data", process - loaded + kLibraries});
    return parts;
  }

  // Copies of what is trained and of what the optimizer knows, from which a checkpoint is written in the background; of
  // ranks that train together the first has copies of all weights, unless each writes its part.
  int64_t WhileSaving() const {
    const absl::StatusOr<SaveFreq> freq = ParseSaveFreq(config_.trainer.save_freq);
    const int64_t steps = config_.trainer.total_training_steps;
    if (!freq.ok() || freq->never() || (freq->steps > 0 && steps > 0 && freq->steps >= steps)) return 0;
    const std::vector<at::Tensor> trained = outline_.decoder.trainable();
    const ZeroShares of_policy = OfPolicy();
    int64_t bytes = of_policy.Part(3, BytesOf(trained)) +
                    of_policy.Part(1, MomentBytes(trained, shape_.optim.moment_dtype) +
                                          (config_.trainer.ema_decay > 0 ? WideTrainable() : 0));
    for (const auto& [name, outline] : roles_) {
      const std::vector<at::Tensor> of_role = outline.decoder.trainable();
      const ZeroShares shares = OfRole(name);
      bytes += shares.Part(3, BytesOf(of_role)) +
               shares.Part(1, MomentBytes(of_role, inputs_.models.at(name).role.optim->moment_dtype));
    }
    return bytes;
  }

  Phase Training(const std::string& when, std::span<const Sequence> samples, Entropy entropy) const {
    return Training(when, samples, entropy, outline_, shape_.pass, OfPolicy());
  }
  Phase Training(const std::string& when, std::span<const Sequence> samples, Entropy entropy, const Outline& outline,
                 const PassSection& pass, const ZeroShares& shares) const {
    ForwardOptions forward = Forward(pass);
    if (phase_ == data::Phase::kReward) forward.together = 2;
    const Passes passes = MeasurePasses(outline, samples, forward, device_,
                                        {.max_row_tokens = forward.max_row_tokens,
                                         .max_shared_row_tokens = forward.max_shared_row_tokens,
                                         .temperature = forward.temperature,
                                         .entropy = entropy,
                                         .gradients = true});
    const int64_t own = (passes.count + shares.ranks - 1) / shares.ranks;  // of the rank with most
    const bool in_turn = shares.ranks > 1 && shares.zero_stage >= 2;
    const int64_t at_once = in_turn ? 1 : std::min(threads_, own);
    // The sum of the gradients is that of the first micro-batch, to which the others are added. Gradients of bfloat16
    // are copied to float32 for it, once nothing else of their pass is held.
    const bool copied = outline.decoder.dtype() == at::kBFloat16 && !outline.decoder.lora();
    const int64_t wide = WideTrainable(outline);
    const int64_t sum = in_turn ? shares.Part(2, wide) : own > (copied ? 1 : at_once) ? wide : 0;
    const int64_t of_pass = shares.splits_weights() ? std::min(passes.largest.gradients, OfLayers(outline.decoder))
                                                    : passes.largest.gradients;
    const int64_t alone = copied && !in_turn ? wide - passes.largest.activations - passes.largest.logits : 0;
    return {.when = when,
            .parts = {{"gradients", std::max(sum + at_once * of_pass, alone)},
                      {"gradients on their way", in_turn ? OnTheirWay(outline.decoder) : 0},
                      {"weights of layers", shares.splits_weights() ? OfLayers(outline.decoder) : 0},
                      {"activations", at_once * passes.largest.activations},
                      {"logits", at_once * passes.largest.logits},
                      {"holes in the heap", Holes(sum + at_once * passes.largest.in_heap)}},
            .keys = KeysOfPasses()};
  }

  Phase Scoring(const char* when, std::span<const Sequence> samples) const {
    const ForwardOptions forward = Forward(shape_.scoring);
    const Passes passes = MeasurePasses(outline_, samples, forward, device_,
                                        {.max_row_tokens = forward.max_row_tokens,
                                         .max_shared_row_tokens = forward.max_shared_row_tokens,
                                         .temperature = forward.temperature,
                                         .gradients = false});
    const int64_t at_once = std::min(threads_, passes.count);
    return {
        .when = when,
        .parts = {{"activations", at_once * passes.largest.activations}, {"logits", at_once * passes.largest.logits}},
        .keys = KeysOfPasses()};
  }

  // `prompts` prompts, each answered `samples` times.
  Phase Generating(const char* when, const RolloutSection& rollout, int64_t prompts, int64_t samples,
                   int64_t prompt_tokens) const {
    engine::EngineOptions options;
    options.max_rows = rollout.max_num_seqs;
    const int64_t rows = std::min(prompts * samples, options.max_rows);
    // With packed weights one pass after another, otherwise one for each thread, on the CPU.
    const bool packs = inputs_.decoder->batch_invariant();
    const bool divides = device_.is_cpu() && !packs;
    const int64_t in_pass =
        device_.is_cpu() ? std::min(engine::EngineOptions::kMostRows, divides ? (rows + 1) / 2 : rows) : rows;
    const int64_t passes = packs ? 1 : (rows + in_pass - 1) / in_pass;
    const int64_t tokens_in_pass =
        std::max<int64_t>(divides ? options.max_step_tokens / 2 : options.max_step_tokens, 1);
    const int64_t piece = std::min(prompt_tokens, tokens_in_pass);
    const GenerationBytes pass = MeasureGeneration(
        outline_,
        {.prompts = std::min({prompts, in_pass, tokens_in_pass / piece}), .prompt_tokens = piece, .rows = in_pass});
    const int64_t longest = prompt_tokens + std::min(rollout.max_response_length,
                                                     inputs_.decoder->config().context_length() - prompt_tokens);
    const int64_t at_once = std::min(threads_, passes);
    // On other devices than the CPU, attention copies keys and values together: once, and once more by heads.
    const model::ModelConfig& model = inputs_.decoder->config();
    const int64_t copied = device_.is_cpu()
                               ? 0
                               : 4 * rows * longest * model.num_kv_heads * model.head_dim *
                                     static_cast<int64_t>(c10::elementSize(inputs_.decoder->compute_type()));
    return {.when = when,
            .parts = {{"KV cache", engine::CacheBytesFor(options, *inputs_.decoder, rows, longest)},
                      {"packed weights",
                       packs ? model::Decoder::PackedBytes(model, inputs_.decoder->compute_type(), rollout.int8_weights)
                             : 0},
                      {"layers and logits", at_once * pass.passes + copied},
                      {"holes in the heap", Holes(at_once * pass.in_heap)}},
            .keys = "rollout.max_num_seqs, data.max_response_length"};
  }

  std::vector<Phase> Phases() const {
    std::vector<Phase> phases = {Training("training", samples_.mini_batch, shape_.entropy)};
    if (!samples_.ptx.empty()) {
      phases.push_back(Training("training on data.ptx_files", samples_.ptx, Entropy::kNone));
    }
    for (const auto& [name, outline] : roles_) {
      phases.push_back(Training(absl::StrCat("training the ", Spaced(name)), samples_.mini_batch, Entropy::kNone,
                                outline, inputs_.models.at(name).role.pass, OfRole(name)));
      if (shape_.rollout != nullptr) phases.back().parts.push_back(Gathered(/*roles=*/false));
      phases.back().keys = absl::StrCat(name, ".ppo_micro_batch_size_per_gpu, ", name, ".model.recompute");
    }
    const size_t trains = phases.size();
    if (shape_.rollout != nullptr) {
      phases.push_back(Scoring("computing log-probabilities", samples_.all));
      int64_t longest = 1;
      for (const auto* sample : drawn_) longest = std::max(longest, static_cast<int64_t>(sample->ids.size()));
      if (!config_.servers.used()) {
        phases.push_back(Generating("generating", *shape_.rollout, DrawnAtOnce(config_), rows_per_sample_, longest));
      }
    }
    if (!samples_.validation.empty()) phases.push_back(Scoring("validating", samples_.validation));
    if (shape_.validation != nullptr && !inputs_.validation.empty()) {
      int64_t longest = 1;
      for (const data::EncodedSample& sample : inputs_.validation) longest = std::max(longest, sample.prompt_tokens);
      RolloutSection exact = *shape_.validation;
      exact.int8_weights = false;  // evaluations are of the policy itself
      phases.push_back(Generating("validating", exact, static_cast<int64_t>(inputs_.validation.size()), 1, longest));
    }
    if (inputs_.decoder->lora()) {
      phases.push_back({.when = "saving",
                        .parts = {{"merged weights", BytesOf(inputs_.decoder->parameters())}},
                        .keys = "model.path (a smaller model)"});
    }
    for (size_t i = trains; i < phases.size(); ++i) phases[i].parts.push_back(Gathered(/*roles=*/true));
    return phases;
  }

  std::vector<TrainingShare> Shares(const std::map<std::string, int64_t>& ranks) const {
    std::vector<TrainingShare> shares;
    for (const auto& [role, count] : ranks) {
      if (count < 2) continue;
      if (role == "actor") {
        shares.push_back(Share(role, count, shape_.optim, *inputs_.decoder, outline_, shape_.pass));
        shares.back().micro_key =
            shape_.rollout != nullptr ? "actor.ppo_micro_batch_size_per_gpu" : "data.micro_batch_size_per_gpu";
      } else if (const auto found = roles_.find(role); found != roles_.end()) {
        const RoleModel& model = inputs_.models.at(role);
        shares.push_back(Share(role, count, *model.role.optim, model.policy.decoder, found->second, model.role.pass));
        shares.back().micro_key = absl::StrCat(role, ".ppo_micro_batch_size_per_gpu");
      }
    }
    return shares;
  }

 private:
  TrainingShare Share(const std::string& role, int64_t ranks, const OptimSection& optim, const model::Decoder& decoder,
                      const Outline& outline, const PassSection& pass) const {
    ForwardOptions forward = Forward(pass);
    if (phase_ == data::Phase::kReward) forward.together = 2;
    TrainingShare share{.role = role,
                        .zero_key = optim.zero_key,
                        .ranks = ranks,
                        .zero_stage = optim.zero_stage,
                        .micro_batches = std::ssize(CutMicroBatches(samples_.mini_batch, forward, device_))};
    const TrainingShare::Bytes all{.weights = BytesOf(decoder.parameters()),
                                   .gradients = WideTrainable(outline),
                                   .moments = MomentBytes(outline.decoder.trainable(), optim.moment_dtype)};
    for (size_t stage = 0; stage < share.bytes.size(); ++stage) {
      const ZeroShares kept{.ranks = ranks, .zero_stage = static_cast<int64_t>(stage)};
      share.bytes[stage] = {.weights = kept.Part(3, all.weights),
                            .gradients = kept.Part(2, all.gradients),
                            .moments = kept.Part(1, all.moments)};
    }
    return share;
  }

  ZeroShares Divided(const std::string& role, const OptimSection& optim) const {
    const auto found = ranks_.find(role);
    if (found == ranks_.end() || found->second < 2) return {};
    return {.ranks = found->second, .zero_stage = optim.zero_stage};
  }
  ZeroShares OfPolicy() const { return Divided("actor", shape_.optim); }
  ZeroShares OfRole(const std::string& name) const { return Divided(name, *inputs_.models.at(name).role.optim); }

  // Weights of which a rank keeps a part are there whole, too, for whoever reads them, until they are trained again.
  MemoryPart Gathered(bool roles) const {
    int64_t bytes = OfPolicy().splits_weights() ? BytesOf(inputs_.decoder->parameters()) : 0;
    for (const auto& [name, outline] : roles_) {
      if (roles && OfRole(name).splits_weights()) bytes += BytesOf(inputs_.models.at(name).policy.decoder.parameters());
    }
    return {"gathered weights", bytes};
  }
  // While they are trained: those outside of layers, three layers, and what one of these arrives in (DataParallel);
  // gradients are of no more layers then.
  static int64_t OfLayers(const model::Decoder& decoder) {
    int64_t largest = 0;
    for (size_t layer = 0; layer + 1 < decoder.units(); ++layer) {
      largest = std::max(largest, BytesOf(decoder.ParametersOf(layer)));
    }
    const int64_t outside = BytesOf(decoder.ParametersOf(decoder.units() - 1));
    return outside + std::max(4 * largest, outside);
  }
  // The copy of a layer's gradients from which each rank gets its part of the sum.
  static int64_t OnTheirWay(const model::Decoder& decoder) {
    int64_t largest = 0;
    for (size_t unit = 0; unit < decoder.units(); ++unit) {
      int64_t bytes = 0;
      for (const at::Tensor& parameter : decoder.TrainedOf(unit)) bytes += WideBytesOf(parameter);
      largest = std::max(largest, bytes);
    }
    return largest;
  }

  int64_t Holes(int64_t in_heap) const { return HolesBeside(in_heap, *inputs_.decoder); }

  // "reward model" of "reward_model".
  static std::string Spaced(std::string name) {
    std::replace(name.begin(), name.end(), '_', ' ');
    return name;
  }

  int64_t WideTrainable() const { return WideTrainable(outline_); }
  static int64_t WideTrainable(const Outline& outline) {
    const std::vector<at::Tensor> trained = outline.decoder.trainable();
    return std::accumulate(trained.begin(), trained.end(), int64_t{0},
                           [](int64_t bytes, const at::Tensor& tensor) { return bytes + WideBytesOf(tensor); });
  }

  ForwardOptions Forward(const PassSection& pass) const {
    return {.workers = nobody_,
            .temperature = shape_.rollout != nullptr ? shape_.rollout->temperature : 1.0,
            .micro_batch_size = pass.micro_batch_size,
            .max_tokens = pass.max_tokens,
            .max_row_tokens = MaxRowTokens(inputs_.decoder->config()),
            .max_shared_row_tokens = MaxSharedRowTokens(*inputs_.decoder)};
  }

  std::string KeysOfPasses() const {
    std::string keys =
        shape_.rollout != nullptr ? "actor.ppo_micro_batch_size_per_gpu" : "data.micro_batch_size_per_gpu";
    absl::StrAppend(&keys, shape_.rollout != nullptr ? ", data.max_response_length" : ", data.max_length");
    if (threads_ > 1) absl::StrAppend(&keys, ", threads");
    absl::StrAppend(&keys, ", model.recompute");
    if (!inputs_.decoder->lora()) absl::StrAppend(&keys, ", model.lora_rank");
    return keys;
  }

  static void AddAnswers(const data::EncodedSample& sample, std::vector<Sequence>& samples) {
    const bool pair = !sample.rejected.empty();
    const size_t prompt = pair ? PairPromptLength(sample) : PromptLength(sample);
    const std::span<const int32_t> ids(sample.ids), rejected(sample.rejected);
    samples.push_back({ids.first(prompt), ids.subspan(prompt)});
    if (pair) samples.push_back({rejected.first(prompt), rejected.subspan(prompt)});
  }

  // Some of the second data set, as many as there are in an optimizer step.
  void DrawPtx(Rng& rng) {
    if (inputs_.ptx.train == nullptr || shape_.ptx_batch_size == 0) return;
    std::vector<int64_t> indexes;
    for (int64_t i = 0; i < shape_.ptx_batch_size; ++i) {
      indexes.push_back(static_cast<int64_t>(rng.Below(static_cast<uint64_t>(inputs_.ptx.train->size()))));
    }
    for (auto& loaded : inputs_.ptx.train->Load(indexes)) {
      if (!loaded.ok()) continue;
      if (auto* const sample = std::get_if<data::EncodedSample>(&*loaded)) drawn_ptx_.push_back(std::move(*sample));
    }
    for (const data::EncodedSample& sample : drawn_ptx_) AddAnswers(sample, samples_.ptx);
  }

  void MakeSamples(Rng& rng) {
    DrawPtx(rng);
    if (shape_.rollout == nullptr) {
      for (const data::EncodedSample* sample : drawn_) AddAnswers(*sample, samples_.all);
      samples_.mini_batch = samples_.all;
      for (const data::EncodedSample& sample : inputs_.validation) AddAnswers(sample, samples_.validation);
    } else {
      samples_.answer.assign(static_cast<size_t>(shape_.rollout->max_response_length), 0);
      for (const data::EncodedSample* sample : drawn_) {
        samples_.all.insert(samples_.all.end(), static_cast<size_t>(rows_per_sample_), {sample->ids, samples_.answer});
      }
      // As the update stage: any samples of the step, those of one prompt next to each other.
      std::vector<size_t> order(samples_.all.size());
      std::iota(order.begin(), order.end(), size_t{0});
      rng.Shuffle(std::span(order));
      if (shape_.mini_batch_size > 0) {
        order.resize(std::min(order.size(), static_cast<size_t>(shape_.mini_batch_size)));
      }
      std::sort(order.begin(), order.end());
      for (const size_t i : order) samples_.mini_batch.push_back(samples_.all[i]);
    }
  }

  const RunConfig& config_;
  const StepShape shape_;
  const RunInputs& inputs_;
  const Outline& outline_;
  const std::map<std::string, Outline>& roles_;  // of the models beside the policy that are trained
  const std::map<std::string, int64_t>& ranks_;  // that train a role
  const data::Phase phase_;
  const at::Device device_;
  const int64_t threads_;
  const int64_t rows_per_sample_;
  mutable Workers nobody_{1};
  std::vector<const data::EncodedSample*> drawn_;  // of one step
  std::vector<data::EncodedSample> drawn_ptx_;
  StepSamples samples_;
};

std::optional<int64_t> Available(const at::Device& device, Env& env, int64_t resident) {
  if (device.is_cpu()) return AvailableMemory(env, resident);
  const c10::DeviceIndex index = std::max<c10::DeviceIndex>(device.index(), 0);
  auto* const allocator = at::getDeviceAllocator(device.type());
  // Others may use the device, too; what this process has there already is part of the estimate.
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const int64_t own = allocator->getDeviceStats(index).reserved_bytes[kAll].current;
  return static_cast<int64_t>(allocator->getMemoryInfo(index).first) + own;
}

const char* WhoNeeds(const MemoryEstimate& estimate) { return estimate.shares.empty() ? "the run" : "rank 0"; }

// ", or raise actor.zero_stage"
std::string KeysToRaise(const MemoryEstimate& estimate) {
  std::string keys;
  for (const TrainingShare& share : estimate.shares) {
    if (share.zero_stage < 3) absl::StrAppend(&keys, keys.empty() ? ", or raise " : ", ", share.zero_key);
  }
  return keys;
}

std::string ArithmeticOf(const model::Decoder& decoder) {
  const auto dtype = std::string(Name(ToDType(decoder.compute_type()).value()));
  return decoder.HasKernels() ? absl::StrCat(dtype, " by ", kernels::Instructions()) : dtype;
}

}  // namespace

absl::StatusOr<MemoryEstimate> EstimateMemory(Recipe& recipe, const RunInputs& inputs,
                                              std::span<const data::EncodedSample> samples, Env& env,
                                              const std::map<std::string, int64_t>& ranks) {
  const model::Decoder& decoder = *inputs.decoder;
  TDOCK_ASSIGN_OR_RETURN(const Outline outline,
                         OutlineOf(decoder, inputs.tokenizer->vocab_size(), recipe.longest_tokens()));
  std::map<std::string, Outline> roles;
  for (const auto& [name, model] : inputs.models) {
    if (!model.role.trained) continue;
    TDOCK_ASSIGN_OR_RETURN(Outline of_role, OutlineOf(model.policy.decoder, 0, recipe.longest_tokens()));
    roles.emplace(name, std::move(of_role));
  }
  TDOCK_ASSIGN_OR_RETURN(const int64_t resident, ResidentMemory(env));
  const Estimator estimator(recipe, recipe.config(), inputs, samples, outline, roles, ranks);
  const std::vector<Phase> phases = estimator.Phases();
  const Phase& most = *std::max_element(phases.begin(), phases.end(),
                                        [](const Phase& a, const Phase& b) { return a.bytes() < b.bytes(); });
  MemoryEstimate estimate{.where = decoder.device().str(),
                          .arithmetic = ArithmeticOf(decoder),
                          .when = most.when,
                          .parts = estimator.Held(resident),
                          .available = {},
                          .shares = estimator.Shares(ranks),
                          .warning = {}};
  estimate.parts.insert(estimate.parts.end(), most.parts.begin(), most.parts.end());
  for (const MemoryPart& part : estimate.parts) estimate.peak += part.bytes;
  estimate.while_saving = estimator.WhileSaving();
  estimate.available = Available(decoder.device(), env, resident);
  if (estimate.available.has_value() && estimate.peak > *estimate.available) {
    estimate.warning =
        absl::StrCat(WhoNeeds(estimate), " will need about ", estimate.peak >> 20, " MiB while ", most.when, ", and ",
                     *estimate.available >> 20, " MiB are available; lower ", most.keys, KeysToRaise(estimate));
  } else if (estimate.available.has_value() && decoder.device().is_cpu() &&
             estimate.peak + estimate.while_saving > *estimate.available) {
    estimate.warning =
        absl::StrCat(WhoNeeds(estimate), " will need about ", (estimate.peak + estimate.while_saving) >> 20,
                     " MiB while a checkpoint is written, and ", *estimate.available >> 20,
                     " MiB are available; with trainer.save_freq=0 it is saved only when it is stopped");
  }
  return estimate;
}

}  // namespace tdock::trainer
