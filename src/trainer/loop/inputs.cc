#include "trainer/loop/inputs.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "engine/model_folder.h"
#include "model/decoder/device.h"
#include "text/char_tokenizer.h"
#include "text/shuffled_indexes.h"
#include "trainer/loop/role_models.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

model::ModelConfig FreshModelConfig(const ModelSection& section, const text::Tokenizer& tokenizer) {
  model::ModelConfig m;
  m.vocab_size = tokenizer.vocab_size();
  m.hidden_size = section.hidden_size;
  m.intermediate_size = section.intermediate_size;
  m.num_layers = section.num_hidden_layers;
  m.num_heads = section.num_attention_heads;
  m.num_kv_heads = section.num_key_value_heads;
  m.head_dim = section.hidden_size / section.num_attention_heads;
  m.max_positions = section.max_position_embeddings;
  m.norm_eps = section.rms_norm_eps;
  m.rope.theta = section.rope_theta;
  m.tied_head = section.tie_word_embeddings;
  m.eos_token_id = tokenizer.eos_id();
  m.pad_token_id = tokenizer.pad_id();
  return m;
}

absl::Status LoadModel(const RunConfig& config, model::Head head, Env& env, RunInputs& inputs) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(config.device));
  if (device.is_cpu()) TDOCK_RETURN_IF_ERROR(Annotate(model::UseInstructions(config.model.kernels), "model.kernels"));
  const model::LoadOptions load = {.dtype = config.model.weight_dtype(),
                                   .value_head = head == model::Head::kValue,
                                   .seed = SeedFor(config, SeedPurpose::kModel),
                                   .rope_scaling = config.model.rope_scaling.json()};
  if (config.model.path.empty()) {
    TDOCK_ASSIGN_OR_RETURN(inputs.tokenizer,
                           text::CharTokenizer::Create(config.model.alphabet, config.model.max_position_embeddings));
    inputs.end_tokens = {inputs.tokenizer->eos_id().value()};
    model::ModelConfig fresh = FreshModelConfig(config.model, *inputs.tokenizer);
    fresh.head = head;
    TDOCK_RETURN_IF_ERROR(Annotate(model::Validate(fresh), "model"));
    if (!load.rope_scaling.empty()) {
      TDOCK_RETURN_IF_ERROR(Annotate(model::OverrideRope(load.rope_scaling, &fresh), "rope_scaling"));
    }
    inputs.decoder = std::make_unique<model::Decoder>(
        model::Decoder::Random(fresh, SeedFor(config, SeedPurpose::kModel), device, config.model.weight_dtype()));
  } else {
    TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder folder, engine::LoadModelFolder(env, config.model.path, device, load));
    inputs.tokenizer = std::move(folder.tokenizer);
    inputs.end_tokens = std::move(folder.end_tokens);
    inputs.decoder = std::make_unique<model::Decoder>(std::move(folder.decoder));
  }
  return config.model.Apply(SeedFor(config, SeedPurpose::kAdapters), *inputs.decoder);
}

absl::Status CheckLengths(const Recipe& recipe, model::Decoder& decoder) {
  const int64_t needed = recipe.longest_tokens();
  // One rope for the trainer and the rollout, whatever the lengths in their passes.
  decoder.FixRopeLength(needed);
  const int64_t positions = decoder.config().context_length();
  if (needed <= positions) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(recipe.longest_keys(), " = ", needed, " tokens; the model has only ", positions, " positions"));
}

// Which of `size` samples to validate with: at most `most`, from everywhere, if that is positive. In their order.
std::vector<int64_t> Chosen(int64_t size, int64_t most, int64_t seed) {
  std::vector<int64_t> indexes(static_cast<size_t>(size));
  std::iota(indexes.begin(), indexes.end(), 0);
  if (most <= 0 || most >= size) return indexes;
  indexes = text::ShuffledIndexes(size, static_cast<uint64_t>(seed)).Next(most);
  std::sort(indexes.begin(), indexes.end());
  return indexes;
}

absl::StatusOr<std::vector<data::EncodedSample>> LoadChosen(const data::Source<data::EncodedSample>& source,
                                                            std::span<const int64_t> chosen, bool skip_bad,
                                                            const data::DataLog& log) {
  constexpr size_t kAtOnce = 256;
  std::vector<data::EncodedSample> samples;
  for (size_t begin = 0; begin < chosen.size(); begin += kAtOnce) {
    const auto indexes = chosen.subspan(begin, std::min(kAtOnce, chosen.size() - begin));
    for (absl::StatusOr<data::OrSkip<data::EncodedSample>>& loaded : source.Load(indexes)) {
      if (!loaded.ok()) {
        if (!skip_bad || !absl::IsInvalidArgument(loaded.status())) return loaded.status();
        log(absl::StrCat("left out of the validation: ", loaded.status().message()));
        continue;
      }
      if (auto* const sample = std::get_if<data::EncodedSample>(&*loaded)) samples.push_back(std::move(*sample));
    }
  }
  return samples;
}

// A model whose template ends replies with another token than the one that its answers end with, as that of many base
// models: it learns to end a reply, but its generation goes on behind it.
void WarnOfReplyEnd(const RunInputs& inputs, const data::DataLog& log) {
  const std::optional<int32_t> end = inputs.data.reply_end;
  if (!end || std::find(inputs.end_tokens.begin(), inputs.end_tokens.end(), *end) != inputs.end_tokens.end()) return;
  log(absl::StrCat("warning: the template ends a reply with the token ", inputs.tokenizer->IdToToken(*end).value_or(""),
                   " (", *end, "), which is no end token of the model, so what it generates does not stop there; add ",
                   *end, " to \"eos_token_id\" in generation_config.json"));
}

// What the run trains on and validates with.
absl::Status LoadData(Recipe& recipe, Env& env, const data::DataLog& log, RunInputs& inputs) {
  RunConfig& config = recipe.config();
  TDOCK_ASSIGN_OR_RETURN(
      inputs.data, data::OpenRunData(env, config.data, recipe.phase(), *inputs.tokenizer, config.model.path, log));
  WarnOfReplyEnd(inputs, log);
  for (const std::string& warning : inputs.data.warnings) log(absl::StrCat("warning: ", warning));
  if (config.data.drop_last && inputs.data.train->size() < DrawnAtOnce(config)) {
    const bool gathers = DrawnAtOnce(config) != config.data.train_batch_size;
    return absl::InvalidArgumentError(absl::StrCat("the training data has ", inputs.data.train->size(),
                                                   " samples, less than a batch of ", DrawnAtOnce(config),
                                                   "; lower data.", gathers ? "gen_batch_size" : "train_batch_size"));
  }
  if (inputs.data.validation == nullptr) return absl::OkStatus();
  const int64_t size = inputs.data.validation->size();
  const std::vector<int64_t> chosen = Chosen(size, config.trainer.val_max_samples, config.data.seed);
  if (static_cast<int64_t>(chosen.size()) < size) {
    log(absl::StrCat("validating with ", chosen.size(), " of ", size, " samples (trainer.val_max_samples)"));
  }
  TDOCK_ASSIGN_OR_RETURN(inputs.validation,
                         LoadChosen(*inputs.data.validation, chosen, config.data.skip_bad_records, log));
  if (inputs.validation.empty()) {
    return absl::FailedPreconditionError("no record of the validation data yields a sample");
  }
  return absl::OkStatus();
}

absl::Status LoadPtx(Recipe& recipe, Env& env, const data::DataLog& log, RunInputs& inputs) {
  const std::optional<data::DataConfig> ptx = recipe.ptx_data();
  if (!ptx) return absl::OkStatus();
  TDOCK_ASSIGN_OR_RETURN(
      inputs.ptx, data::OpenRunData(env, *ptx, data::Phase::kSft, *inputs.tokenizer, recipe.config().model.path, log));
  if (inputs.ptx.train->size() == 0) return absl::InvalidArgumentError("data.ptx_files have no sample");
  return absl::OkStatus();
}

absl::StatusOr<RunInputs> Load(Recipe& recipe, Env& env, const data::DataLog& log, const InputParts& parts) {
  RunConfig& config = recipe.config();
  RunInputs inputs;
  inputs.log = log;
  // Threads divide samples, not operations: those of a small model are too short to be worth a barrier each, and on a
  // busy machine a barrier waits for a thread that is not running.
  at::set_num_threads(static_cast<int>(config.intra_op_threads));
  const reward::ExternalRewardConfig none;
  const bool scores = parts.reward && ScoresHere(recipe.shape(), config);
  TDOCK_ASSIGN_OR_RETURN(inputs.reward, reward::MakeRunReward(config.reward, scores ? config.external_reward : none,
                                                              config.data.columns.keep, log));
  TDOCK_RETURN_IF_ERROR(LoadModel(config, recipe.head(), env, inputs));
  TDOCK_RETURN_IF_ERROR(CheckOptim(recipe.shape().optim, *inputs.decoder));
  TDOCK_ASSIGN_OR_RETURN(inputs.models, LoadRoles(recipe, config, env, inputs));
  const bool reads_texts = std::any_of(inputs.models.begin(), inputs.models.end(),
                                       [](const auto& entry) { return entry.second.own_tokenizer != nullptr; });
  config.data.keep_messages = config.external_reward.used() || config.environment.used() || reads_texts;
  config.threads = model::WorkerThreads(config.threads, inputs.decoder->device());
  TDOCK_RETURN_IF_ERROR(CheckLengths(recipe, *inputs.decoder));
  if (config.environment.used() && config.environment.format == environment::TurnFormat::kChat) {
    absl::StatusOr<text::ChatTemplate> found = data::ResolveTemplate(env, config.data, config.model.path);
    if (found.ok()) {
      inputs.chat_template = *std::move(found);
    } else if (!absl::IsNotFound(found.status())) {
      return found.status();
    }
  }
  if (parts.data) TDOCK_RETURN_IF_ERROR(LoadData(recipe, env, log, inputs));
  if (parts.ptx) TDOCK_RETURN_IF_ERROR(LoadPtx(recipe, env, log, inputs));
  return inputs;
}

}  // namespace

bool ScoresHere(const StepShape& shape, const RunConfig& config) {
  const bool elsewhere = absl::c_linear_search(config.trainer.dock.external_stages, "reward");
  return (shape.rollout != nullptr && !elsewhere) || shape.validation != nullptr;
}

absl::StatusOr<RunInputs> LoadRunInputs(Recipe& recipe, Env& env, const data::DataLog& log, const InputParts& parts) {
  return Guarded([&] { return Load(recipe, env, log, parts); });
}

}  // namespace tdock::trainer
