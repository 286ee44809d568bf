#include "trainer/recipes/grpo_inputs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "engine/model_folder.h"
#include "model/decoder/device.h"
#include "text/arithmetic.h"
#include "text/char_tokenizer.h"

namespace tdock::trainer {
namespace {

model::ModelConfig FreshModelConfig(const GrpoConfig& config, const text::Tokenizer& tokenizer) {
  model::ModelConfig m;
  m.vocab_size = tokenizer.vocab_size();
  m.hidden_size = config.model.hidden_size;
  m.intermediate_size = config.model.intermediate_size;
  m.num_layers = config.model.num_hidden_layers;
  m.num_heads = config.model.num_attention_heads;
  m.num_kv_heads = config.model.num_key_value_heads;
  m.head_dim = config.model.hidden_size / config.model.num_attention_heads;
  m.max_positions = config.model.max_position_embeddings;
  m.norm_eps = config.model.rms_norm_eps;
  m.rope.theta = config.model.rope_theta;
  m.tied_head = config.model.tie_word_embeddings;
  m.eos_token_id = tokenizer.eos_id();
  m.pad_token_id = tokenizer.pad_id();
  return m;
}

absl::StatusOr<ProblemSet> MakeProblemSet(text::PromptSet problems, const text::Tokenizer& tokenizer) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<EncodedProblem> encoded, EncodeProblems(problems, tokenizer));
  return ProblemSet{std::move(problems), std::move(encoded)};
}

// Whether every correct answer fits, and every sample fits the model.
absl::Status CheckLengths(const GrpoConfig& config, const RunInputs& inputs) {
  size_t prompt = 0;
  size_t answer = 0;
  for (const ProblemSet* set : {&inputs.train, &inputs.validation, &inputs.test}) {
    for (const EncodedProblem& problem : set->encoded) {
      prompt = std::max(prompt, problem.prompt.size());
      answer = std::max(answer, problem.answer.size());
    }
  }
  const int64_t longest = config.data.max_response_length;
  if (longest < static_cast<int64_t>(answer)) {
    return absl::InvalidArgumentError(absl::StrCat("data.max_response_length = ", longest,
                                                   " truncates correct answers, which have up to ", answer,
                                                   " tokens with their end token"));
  }
  const int64_t needed = static_cast<int64_t>(prompt) + longest;
  // One rope for the trainer and the rollout, whatever the lengths in their passes.
  inputs.decoder->FixRopeLength(needed);
  const int64_t positions = inputs.decoder->config().context_length();
  if (needed <= positions) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a prompt of ", prompt,
                                                 " tokens and an answer of data.max_response_length = ", longest,
                                                 " need ", needed, " positions; the model has ", positions));
}

}  // namespace

uint64_t SeedFor(const GrpoConfig& config, SeedPurpose purpose) {
  return DeriveSeed(static_cast<uint64_t>(config.seed), static_cast<uint64_t>(purpose));
}

absl::StatusOr<RunInputs> LoadRunInputs(const GrpoConfig& config, Env& env) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(config.device));
  const model::LoadOptions load = {.rope_scaling = config.model.rope_scaling.json()};
  RunInputs inputs;
  if (config.model.path.empty()) {
    TDOCK_ASSIGN_OR_RETURN(inputs.tokenizer,
                           text::CharTokenizer::Create(text::kAdditionAlphabet, config.model.max_position_embeddings));
    inputs.end_tokens = {inputs.tokenizer->eos_id().value()};
    model::ModelConfig fresh = FreshModelConfig(config, *inputs.tokenizer);
    TDOCK_RETURN_IF_ERROR(Annotate(model::Validate(fresh), "model"));
    if (!load.rope_scaling.empty()) {
      TDOCK_RETURN_IF_ERROR(Annotate(model::OverrideRope(load.rope_scaling, &fresh), "rope_scaling"));
    }
    inputs.decoder =
        std::make_unique<model::Decoder>(model::Decoder::Random(fresh, SeedFor(config, SeedPurpose::kModel), device));
  } else {
    TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder folder, engine::LoadModelFolder(env, config.model.path, device, load));
    inputs.tokenizer = std::move(folder.tokenizer);
    inputs.end_tokens = std::move(folder.end_tokens);
    inputs.decoder = std::make_unique<model::Decoder>(std::move(folder.decoder));
  }
  TDOCK_RETURN_IF_ERROR(config.model.Apply(SeedFor(config, SeedPurpose::kAdapters), *inputs.decoder));
  text::AdditionSplit split = text::SplitAddition(SeedFor(config, SeedPurpose::kData));
  TDOCK_ASSIGN_OR_RETURN(inputs.train, MakeProblemSet(std::move(split.train), *inputs.tokenizer));
  TDOCK_ASSIGN_OR_RETURN(inputs.validation, MakeProblemSet(std::move(split.validation), *inputs.tokenizer));
  TDOCK_ASSIGN_OR_RETURN(inputs.test, MakeProblemSet(std::move(split.test), *inputs.tokenizer));
  TDOCK_RETURN_IF_ERROR(CheckLengths(config, inputs));
  return inputs;
}

}  // namespace tdock::trainer
