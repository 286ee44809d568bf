#include "trainer/recipes/first_config.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "data/data_config.h"
#include "model/files/config.h"
#include "text/tokenizer.h"
#include "trainer/recipes/recipes.h"

namespace tdock::trainer {
namespace {

constexpr int64_t kMostRead = 1000;

// What a look at the data told.
struct Found {
  std::string chat_template;  // empty: none is needed, or the model's own
  std::string form;
  int64_t samples = 0;  // of the file
  int64_t longest = 0;  // tokens, of those that were read
  bool has_truth = false;
};

// The text in YAML, which has JSON's texts.
std::string Quoted(const std::string& text) { return JsonText(nlohmann::json(text)); }

int64_t RoundedUp(int64_t number, int64_t step) { return (number + step - 1) / step * step; }

absl::StatusOr<int64_t> Positions(Env& env, const std::string& model) {
  const std::string path = JoinPath(model, "config.json");
  TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, path, model::kMaxConfigBytes));
  const absl::StatusOr<model::ModelConfig> config = model::ParseModelConfig(json);
  if (!config.ok()) return Annotate(config.status(), path);
  return config->context_length();
}

absl::StatusOr<Found> LookAt(Env& env, const data::DataConfig& config, data::Phase phase,
                             const text::Tokenizer& tokenizer, const std::string& model) {
  TDOCK_ASSIGN_OR_RETURN(const auto samples, data::PhaseSamples::Open(env, config, phase, tokenizer, model));
  Found found{.chat_template = config.chat_template,
              .form = absl::StrCat(samples->adapter().name, ", ", data::DescribeAdapter(samples->adapter())),
              .samples = samples->size()};
  std::vector<int64_t> indexes(static_cast<size_t>(std::min(samples->size(), kMostRead)));
  std::iota(indexes.begin(), indexes.end(), 0);
  for (const absl::StatusOr<data::OrSkip<data::EncodedSample>>& loaded : samples->Load(indexes)) {
    if (!loaded.ok()) return loaded.status();
    const auto* const sample = std::get_if<data::EncodedSample>(&*loaded);
    if (sample == nullptr) continue;
    found.longest =
        std::max(found.longest, static_cast<int64_t>(std::max(sample->ids.size(), sample->rejected.size())));
    found.has_truth = found.has_truth || !sample->truth.empty();
  }
  return found;
}

// With the model's own template where the data need one, else with chatml, if its tokens are the tokenizer's.
absl::StatusOr<Found> LookWithTemplate(Env& env, data::DataConfig config, data::Phase phase,
                                       const text::Tokenizer& tokenizer, const std::string& model) {
  absl::StatusOr<Found> found = LookAt(env, config, phase, tokenizer, model);
  if (found.ok() || text::ChatTemplate::OfModel(env, model).ok()) return found;
  config.chat_template = "chatml";
  absl::StatusOr<Found> with_chatml = LookAt(env, config, phase, tokenizer, model);
  return with_chatml.ok() ? with_chatml : found;
}

std::string SftLengths(const Found& found, int64_t positions) {
  const int64_t length = std::min(RoundedUp(found.longest, 32), positions);
  return absl::StrCat("  max_length: ", length, "  # tokens; the longest of the samples that were read has ",
                      found.longest, ", and the model takes ", positions, "\n");
}

std::string PromptLengths(const Found& found, int64_t positions) {
  const int64_t prompt = std::min(RoundedUp(found.longest, 8), positions - 1);
  const int64_t response = std::min<int64_t>(512, positions - prompt);
  return absl::StrCat("  max_prompt_length: ", prompt, "  # tokens; the longest that was read has ", found.longest,
                      "\n", "  max_response_length: ", response, "  # together they must fit the model's ", positions,
                      " positions\n");
}

// What a recipe is told beside the model and the data.
std::string Settings(absl::string_view recipe, const std::string& model, int64_t batch) {
  if (recipe == "dpo") {
    return "\ndpo:\n  beta: 0.1  # how strongly the model is held to what it was\n\noptim:\n  lr: 1.0e-6\n";
  }
  if (recipe == "sft" || recipe == "rm") return "\noptim:\n  lr: 1.0e-5\n  lr_scheduler_type: cosine\n";
  std::string settings;
  if (recipe == "ppo") {
    absl::StrAppend(
        &settings, "\ncritic:\n  model:\n    path: ", Quoted(model),
        "  # better: a reward model, from which the critic begins\n  optim:\n    lr: 1.0e-5\n\n",
        "# A reward model's scores instead of rules:\n# reward_model:\n#   model:\n#     path: a folder that "
        "the recipe rm has left\n");
  } else {
    absl::StrAppend(&settings, "\nrollout:\n  n: 8  # answers to each prompt\n  temperature: 1.0\n");
  }
  absl::StrAppend(
      &settings, "\nactor:\n  ppo_mini_batch_size: ", batch, "  # prompts of one optimizer step\n",
      recipe == "grpo" ? "  kl_loss_coef: 0.001\n" : "", "  optim:\n    lr: 1.0e-6\n\n",
      "# Rules that score answers: exact, number, math, regex, format, length. Without any, the data source of "
      "a sample\n# chooses one, and otherwise the answer must be exactly the right one.\n# reward:\n#   "
      "math:\n#     weight: 1\n");
  return settings;
}

}  // namespace

absl::StatusOr<std::string> FirstConfig(Env& env, absl::string_view recipe, const std::string& model,
                                        const std::string& data) {
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<Recipe> made, MakeRecipe(recipe));
  TDOCK_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer, text::LoadTokenizer(env, model));
  TDOCK_ASSIGN_OR_RETURN(const int64_t positions, Positions(env, model));
  data::DataConfig config;
  config.path = data;
  config.max_length = config.max_prompt_length = positions;
  TDOCK_ASSIGN_OR_RETURN(const Found found, LookWithTemplate(env, config, made->phase(), *tokenizer, model));
  if (found.longest == 0) {
    return absl::InvalidArgumentError(absl::StrCat(data, " (", found.form, "): none of the first ", kMostRead,
                                                   " records yields a sample of at most ", positions, " tokens"));
  }
  const bool answers = made->phase() == data::Phase::kPrompt;
  if (answers && !found.has_truth) {
    return absl::InvalidArgumentError(absl::StrCat(
        data, " (", found.form,
        ") has no right answers for rewards to compare with; name their column with data.columns.truth in a "
        "configuration of your own"));
  }
  const int64_t held_out = found.samples >= 20 ? std::min<int64_t>(found.samples / 20, 256) : 0;
  const int64_t training = found.samples - held_out;
  const int64_t batch = std::clamp<int64_t>(training / 4, 1, answers ? 64 : 32);

  std::string yaml = absl::StrCat("# `tdock train --keys ", recipe, "` explains every key.\nrecipe: ", recipe,
                                  "\n\nmodel:\n  path: ", Quoted(model), "\n\ndata:\n  # Recognised as ", found.form,
                                  ".\n  train_files: ", Quoted(data), "\n");
  if (held_out > 0) {
    absl::StrAppend(&yaml, "  val_share: ", static_cast<double>(held_out) / static_cast<double>(found.samples),
                    "  # held out to validate with: ", held_out, " of ", found.samples, "; or val_files\n");
  }
  if (!found.chat_template.empty()) {
    absl::StrAppend(&yaml, "  template: ", found.chat_template, "  # the model names none that is known\n");
  }
  absl::StrAppend(&yaml, "  train_batch_size: ", batch, answers ? "  # prompts in a step\n" : "  # samples in a step\n",
                  answers ? PromptLengths(found, positions) : SftLengths(found, positions));
  yaml += Settings(recipe, model, batch);
  absl::StrAppend(&yaml, "\ntrainer:\n  total_epochs: 1\n  test_freq: 20  # steps from one validation to the next\n");
  return yaml;
}

}  // namespace tdock::trainer
