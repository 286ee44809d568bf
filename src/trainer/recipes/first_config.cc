#include "trainer/recipes/first_config.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/config/spec.h"
#include "data/data_config.h"
#include "model/decoder/decoder.h"
#include "model/files/config.h"
#include "text/tokenizer.h"
#include "trainer/recipes/recipes.h"
#include "trainer/reward/exact_number.h"

namespace tdock::trainer {
namespace {

constexpr int64_t kMaxRead = 1000;
// Tokens of an answer without the way to it, at the longest; and room for that way.
constexpr int64_t kFinalAnswerTokens = 32;
constexpr int64_t kReasoningTokens = 256;
// Steps of a run, if the data have enough samples for smallest batches.
constexpr int64_t kSteps = 40;
constexpr int64_t kSmallestBatch = 8;
// Models with fewer parameters take, and need, a learning rate several times as high as those of some billions.
constexpr int64_t kSmallModel = 1'000'000'000;

// Findings in the first samples of the data.
struct Found {
  std::string chat_template;  // empty: none is needed, or the model's own
  data::Adapter adapter;
  bool plain_as_turns = false;  // the data have prompts as plain text, and the model a template
  int64_t samples = 0;          // of the file
  int64_t longest = 0;          // tokens, among the samples that were read
  // Only of recipes that answer prompts:
  int64_t longest_answer = 0;  // tokens, of the right answers and of the replies in the data; 0: there are none
  int64_t truths = 0, numbers = 0;

  bool in_turns() const { return adapter.style == data::Adapter::Style::kChat; }
  bool of_numbers() const { return truths > 0 && 10 * numbers >= 9 * truths; }
  std::string form() const { return absl::StrCat(adapter.name, ", ", data::DescribeAdapter(adapter)); }
};

// The text in YAML, which has JSON's texts.
std::string Quoted(const std::string& text) { return JsonText(nlohmann::json(text)); }

int64_t RoundedUp(int64_t number, int64_t step) { return (number + step - 1) / step * step; }

absl::StatusOr<model::ModelConfig> ConfigOf(Env& env, const std::string& model) {
  const std::string path = JoinPath(model, "config.json");
  TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, path, model::kMaxConfigBytes));
  absl::StatusOr<model::ModelConfig> config = model::ParseModelConfig(json);
  return config.ok() ? config : Annotate(config.status(), path);
}

bool IsSmall(const model::ModelConfig& config) {
  int64_t parameters = 0;
  for (const auto& [name, shape] : model::Decoder::WeightShapes(config)) {
    parameters += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  return parameters < kSmallModel;
}

// "1.0e-5  # …": the learning rate of a small model and a large one.
std::string RateOf(bool is_small, const char* small, const char* large) {
  return absl::StrCat(is_small ? small : large, "  # ", is_small ? "below" : "from", " a billion parameters; else ",
                      is_small ? large : small, "\n");
}

// Many optimizer steps teach more than large batches.
int64_t BatchOf(int64_t samples, int64_t largest) {
  const int64_t smallest = std::clamp<int64_t>(samples / 4, 1, kSmallestBatch);
  return std::clamp(samples / kSteps, smallest, largest);
}

std::vector<absl::StatusOr<data::OrSkip<data::EncodedSample>>> FirstOf(const data::PhaseSamples& samples) {
  std::vector<int64_t> indexes(static_cast<size_t>(std::min(samples.size(), kMaxRead)));
  std::iota(indexes.begin(), indexes.end(), 0);
  return samples.Load(indexes);
}

// Tokens of the longest reply; 0 where the data have none.
int64_t LongestReply(Env& env, const data::DataConfig& config, const text::Tokenizer& tokenizer,
                     const std::string& model) {
  const auto samples = data::PhaseSamples::Open(env, config, data::Phase::kSft, tokenizer, model);
  if (!samples.ok()) return 0;
  int64_t longest = 0;
  for (const absl::StatusOr<data::OrSkip<data::EncodedSample>>& loaded : FirstOf(**samples)) {
    const auto* const sample = loaded.ok() ? std::get_if<data::EncodedSample>(&*loaded) : nullptr;
    if (sample == nullptr || sample->prompt_tokens == 0) continue;
    longest = std::max(longest, static_cast<int64_t>(sample->ids.size()) - sample->prompt_tokens);
  }
  return longest;
}

void AddTruth(const std::string& truth, const text::Tokenizer& tokenizer, Found& found) {
  if (absl::StripAsciiWhitespace(truth).empty()) return;
  ++found.truths;
  found.numbers += reward::IsNumber(truth) ? 1 : 0;
  const auto tokens = tokenizer.Encode(truth, {.spelled = text::SpelledSpecial::kAsText});
  if (tokens.ok()) found.longest_answer = std::max(found.longest_answer, static_cast<int64_t>(tokens->size()));
}

absl::StatusOr<Found> LookAt(Env& env, const data::DataConfig& config, data::Phase phase,
                             const text::Tokenizer& tokenizer, const std::string& model) {
  TDOCK_ASSIGN_OR_RETURN(const auto samples, data::PhaseSamples::Open(env, config, phase, tokenizer, model));
  Found found{.chat_template = config.chat_template, .adapter = samples->adapter(), .samples = samples->size()};
  for (const absl::StatusOr<data::OrSkip<data::EncodedSample>>& loaded : FirstOf(*samples)) {
    if (!loaded.ok()) return loaded.status();
    const auto* const sample = std::get_if<data::EncodedSample>(&*loaded);
    if (sample == nullptr) continue;
    found.longest =
        std::max(found.longest, static_cast<int64_t>(std::max(sample->ids.size(), sample->rejected.size())));
    if (phase == data::Phase::kPrompt) AddTruth(sample->truth, tokenizer, found);
  }
  if (phase == data::Phase::kPrompt) {
    found.longest_answer = std::max(found.longest_answer, LongestReply(env, config, tokenizer, model));
  }
  return found;
}

// With the model's own template where the data need one, or have plain prompts that can be turns; else with chatml, if
// its tokens are the tokenizer's.
absl::StatusOr<Found> LookWithTemplate(Env& env, data::DataConfig config, data::Phase phase,
                                       const text::Tokenizer& tokenizer, const std::string& model) {
  absl::StatusOr<Found> found = LookAt(env, config, phase, tokenizer, model);
  const bool has_template = text::ChatTemplate::OfModel(env, model).ok();
  if (found.ok() && has_template && !found->in_turns() && !found->adapter.prompt.empty()) {
    config.style = data::StyleChoice::kChat;
    absl::StatusOr<Found> as_turns = LookAt(env, config, phase, tokenizer, model);
    if (!as_turns.ok()) return found;
    as_turns->plain_as_turns = true;
    return as_turns;
  }
  if (found.ok() || has_template) return found;
  config.chat_template = "chatml";
  absl::StatusOr<Found> with_chatml = LookAt(env, config, phase, tokenizer, model);
  return with_chatml.ok() ? with_chatml : found;
}

std::string SftLengths(const Found& found, int64_t positions) {
  const int64_t length = std::min(RoundedUp(found.longest, 32), positions);
  return absl::StrCat("  max_length: ", length, "  # tokens; the longest of the samples that were read has ",
                      found.longest, ", and the model takes ", positions, "\n");
}

struct PromptLengths {
  int64_t prompt = 0, response = 0;
  std::string text;
};

PromptLengths LengthsOfPrompts(const Found& found, bool plays, int64_t positions) {
  PromptLengths lengths;
  lengths.prompt = std::min(RoundedUp(found.longest, 8), positions - 1);
  const bool is_final = found.longest_answer <= kFinalAnswerTokens;
  int64_t wanted = is_final ? kReasoningTokens : RoundedUp(found.longest_answer, 32);
  if (plays) wanted = std::max(wanted, 2 * kReasoningTokens);
  lengths.response = std::min(wanted, positions - lengths.prompt);
  std::string why = absl::StrCat("the longest right answer that was read has ", found.longest_answer,
                                 is_final ? ", and the rest is room to reason" : "");
  if (found.longest_answer == 0) why = "the data have no answers that say how long one is";
  if (plays) why = "a whole episode, with the texts of the environment";
  lengths.text = absl::StrCat("  max_prompt_length: ", lengths.prompt, "  # tokens; the longest that was read has ",
                              found.longest, "\n  max_response_length: ", lengths.response, "  # ", why,
                              "; together they must fit the model's ", positions, " positions\n");
  return lengths;
}

std::string DataSection(const Found& found, const std::string& path, int64_t held_out, const std::string& lengths) {
  std::string section =
      absl::StrCat("\ndata:\n  # Recognised as ", found.form(), ".\n  train_files: ", Quoted(path), "\n");
  if (held_out > 0) {
    absl::StrAppend(&section, "  val_share: ", static_cast<double>(held_out) / static_cast<double>(found.samples),
                    "  # held out to validate with: ", held_out, " of ", found.samples, "; or val_files\n");
  }
  if (found.plain_as_turns) {
    absl::StrAppend(&section,
                    "  # The prompts are plain text, and the model has a chat template: each becomes a turn of the "
                    "user.\n  # Without this line, the model goes on with the text as it stands.\n  style: chat\n");
  }
  if (!found.chat_template.empty()) {
    absl::StrAppend(&section, "  template: ", found.chat_template, "  # the model names none that is known\n");
  }
  return section + lengths;
}

// The key of the section `environment` that such an environment has.
absl::string_view EnvironmentKey(const std::string& environment) {
  if (absl::StartsWith(environment, "http://") || absl::StartsWith(environment, "https://")) return "url";
  return absl::StrContains(environment, ':') ? "function" : "name";
}

std::string EnvironmentSection(const Found& found, const std::string& environment, int64_t response) {
  return absl::StrCat("\nenvironment:  # gives the rewards of its episodes\n  ", EnvironmentKey(environment), ": ",
                      Quoted(environment), "\n  max_turns: ", std::min<int64_t>(4, (response + 1) / 2),
                      "  # answers of the model\n",
                      found.in_turns() ? "" : "  format: text  # the prompts are no turns\n  tool_format: none\n");
}

// The sections that give the answers their rewards.
std::string RewardSettings(const Found& found, const FirstConfigOptions& options, int64_t response) {
  std::string settings;
  if (!options.environment.empty()) settings += EnvironmentSection(found, options.environment, response);
  if (!options.reward_function.empty()) {
    absl::StrAppend(&settings, "\nreward:\n  function: ", Quoted(options.reward_function), "\n");
  }
  if (!settings.empty()) return settings;
  if (found.of_numbers()) {
    return absl::StrCat("\n# ", found.numbers, " of ", found.truths,
                        " right answers that were read are numbers: the last number of an answer must be theirs.\n"
                        "# Other rules: exact, math, regex, format, length.\nreward:\n  number:\n    weight: 1\n");
  }
  return "\n# Rules that score answers: exact, number, math, regex, format, length. Without any, the data source of "
         "a sample\n# chooses one, and otherwise the answer must be exactly the right one.\n# reward:\n#   "
         "math:\n#     weight: 1\n";
}

// The sizes and learning rates of a recipe that answers prompts.
std::string AnswerSettings(const FirstConfigOptions& options, int64_t batch, bool is_small) {
  std::string settings;
  if (options.recipe == "ppo") {
    absl::StrAppend(
        &settings, options.environment.empty() ? "" : "\nrollout:\n  min_response_tokens: 0  # turns may be short\n",
        "\ncritic:\n  model:\n    path: ", Quoted(options.model),
        "  # better: a reward model, from which the critic begins\n  optim:\n    lr: 1.0e-5\n\n",
        "# A reward model's scores instead of rules:\n# reward_model:\n#   model:\n#     path: a folder that "
        "the recipe rm has left\n");
  } else {
    absl::StrAppend(&settings, "\nrollout:\n  n: 8  # answers to each prompt\n  temperature: 1.0\n");
  }
  absl::StrAppend(&settings, "\nactor:\n  ppo_mini_batch_size: ", batch,
                  "  # prompts of one optimizer step\n  optim:\n    lr: ", RateOf(is_small, "1.0e-5", "1.0e-6"));
  return settings;
}

// The settings of a recipe beside the model and the data.
std::string Settings(const Found& found, const FirstConfigOptions& options, int64_t batch, int64_t response,
                     bool is_small) {
  if (options.recipe == "dpo") {
    return absl::StrCat("\ndpo:\n  beta: 0.1  # how strongly the model is held to its initial state\n\noptim:\n  lr: ",
                        RateOf(is_small, "5.0e-6", "1.0e-6"));
  }
  if (options.recipe == "sft" || options.recipe == "rm") {
    return absl::StrCat("\noptim:\n  lr: ", RateOf(is_small, "5.0e-5", "1.0e-5"), "  lr_scheduler_type: cosine\n");
  }
  return AnswerSettings(options, batch, is_small) + RewardSettings(found, options, response);
}

absl::Status CheckRewards(const FirstConfigOptions& options, bool answers) {
  if (answers || (options.environment.empty() && options.reward_function.empty())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("an environment or a reward function is for recipes that answer prompts (ppo, grpo, dapo), which ",
                   options.recipe, " does not: leave --environment and --reward-function out"));
}

absl::Status CheckFound(const Found& found, const FirstConfigOptions& options, bool answers, int64_t positions) {
  if (found.longest == 0) {
    return absl::InvalidArgumentError(absl::StrCat(options.data, " (", found.form(), "): none of the first ", kMaxRead,
                                                   " records yields a sample of at most ", positions, " tokens"));
  }
  // The one that is built in compares with right answers, too.
  const bool has_own = !options.environment.empty() && EnvironmentKey(options.environment) != "name";
  if (!answers || found.truths > 0 || has_own || !options.reward_function.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      options.data, " (", found.form(),
      ") has no right answers for rewards to compare with; let a function (--reward-function FILE.py:NAME) or an "
      "environment of your own (--environment FILE.py:NAME or URL) give the rewards, or name the column of the answers "
      "with data.columns.truth in a configuration of your own"));
}

}  // namespace

absl::StatusOr<std::string> FirstConfig(Env& env, const FirstConfigOptions& options, const data::DataLog& log) {
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Recipe> made, MakeRecipe(options.recipe));
  const bool answers = made->phase() == data::Phase::kPrompt;
  TDOCK_RETURN_IF_ERROR(CheckRewards(options, answers));
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer, text::LoadTokenizer(env, options.model));
  TDOCK_ASSIGN_OR_RETURN(const model::ModelConfig model_config, ConfigOf(env, options.model));
  const int64_t positions = model_config.context_length();
  data::DataConfig config;
  config.path = options.data;
  config.max_length = config.max_prompt_length = positions;
  TDOCK_ASSIGN_OR_RETURN(const Found found, LookWithTemplate(env, config, made->phase(), *tokenizer, options.model));
  TDOCK_RETURN_IF_ERROR(CheckFound(found, options, answers, positions));
  if (found.plain_as_turns) {
    log("the prompts are plain text, and the model has a chat template: with data.style chat each of them becomes a "
        "turn of the user; set it to text for a model that is to go on with them as they stand");
  }
  const int64_t held_out = found.samples >= 20 ? std::min<int64_t>(found.samples / 20, 256) : 0;
  const int64_t batch = BatchOf(found.samples - held_out, answers ? 64 : 32);
  const PromptLengths lengths = LengthsOfPrompts(found, !options.environment.empty(), positions);
  const std::string sizes =
      absl::StrCat("  train_batch_size: ", batch, answers ? "  # prompts in a step\n" : "  # samples in a step\n",
                   answers ? lengths.text : SftLengths(found, positions));
  std::string yaml = absl::StrCat(
      "# `tdock preflight FILE` says what a run of this will do, `tdock train FILE` trains, and `tdock train --keys ",
      options.recipe, "`\n# explains every key.\nrecipe: ", options.recipe,
      "\n\nmodel:\n  path: ", Quoted(options.model), "\n", DataSection(found, options.data, held_out, sizes),
      Settings(found, options, batch, lengths.response, IsSmall(model_config)),
      "\ntrainer:\n  total_epochs: 1\n  test_freq: 20  # steps from one validation to the next\n");
  config::Spec spec;
  made->Bind(spec);
  TDOCK_RETURN_IF_ERROR(config::Load(spec, yaml, "the first configuration", {}));
  return yaml;
}

}  // namespace tdock::trainer
