#include "cli/sampling_options.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/utf8.h"

namespace tdock::cli {
namespace {

constexpr char kGroup[] = "Sampling, in the order of its steps";
constexpr char kEndGroup[] = "Where an answer ends";

template <class Value>
CLI::Option* Add(CLI::App& command, const char* name, Value& value, const char* group, const char* what) {
  return command.add_option(name, value, what)->group(group)->capture_default_str();
}

void AddSteps(CLI::App& command, SamplingArguments& arguments) {
  engine::SamplingParams& params = arguments.params;
  command
      .add_option("--logit-bias", arguments.logit_bias,
                  "TOKEN:BIAS, a token's id and what is added to its logit; may be given more than once")
      ->group(kGroup)
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--allowed-tokens", params.allowed_tokens, "Ids, such as 5,7,11; no other token is sampled")
      ->group(kGroup)
      ->delimiter(',')
      ->allow_extra_args(false);
  Add(command, "--repetition-penalty", params.repetition_penalty, kGroup,
      "Divides positive logits of tokens in the prompt or the answer, and multiplies negative ones; 1: none");
  Add(command, "--frequency-penalty", params.frequency_penalty, kGroup,
      "Subtracted from a token's logit for each time that the answer has it");
  Add(command, "--presence-penalty", params.presence_penalty, kGroup,
      "Subtracted from the logit of each token that the answer has");
  Add(command, "--temperature", params.temperature, kGroup,
      "Sampling temperature; 0 always takes the most likely token, and the steps after this one change nothing");
  Add(command, "--top-k", params.top_k, kGroup, "Sample from the K most likely tokens; 0: from all");
  Add(command, "--top-p", params.top_p, kGroup,
      "Sample from the fewest of the most likely tokens whose probabilities sum to P; 1: from all");
  Add(command, "--min-p", params.min_p, kGroup,
      "Sample from tokens with at least this share of the highest probability; 0: from all");
  Add(command, "--seed", params.seed, kGroup, "Seed of the sampling");
}

void AddEnds(CLI::App& command, engine::SamplingParams& params) {
  Add(command, "--max-new-tokens", params.max_new_tokens, kEndGroup, "Maximum number of tokens in an answer");
  Add(command, "--min-new-tokens", params.min_new_tokens, kEndGroup,
      "Number of tokens before which no end token, stop token or stop text ends an answer");
  command.add_flag("--ignore-eos", params.ignore_eos, "End tokens of the model do not end an answer")->group(kEndGroup);
  command.add_option("--stop-tokens", params.stop_tokens, "Ids, such as 5,7; each ends an answer")
      ->group(kEndGroup)
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--stop", params.stop,
                  "Text that ends an answer, which is cut right before it; may be given more than once")
      ->group(kEndGroup)
      ->allow_extra_args(false);
}

}  // namespace

void AddSamplingOptions(CLI::App& command, SamplingArguments& arguments) {
  AddSteps(command, arguments);
  AddEnds(command, arguments.params);
}

absl::StatusOr<engine::SamplingParams> ReadSampling(const SamplingArguments& arguments) {
  engine::SamplingParams params = arguments.params;
  for (const std::string& given : arguments.logit_bias) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(given, absl::MaxSplits(':', 1));
    int32_t token = 0;
    double bias = 0;
    if (!absl::SimpleAtoi(parts.first, &token) || !absl::SimpleAtod(parts.second, &bias)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--logit-bias ", Quoted(given), " is not a token's id and a number, such as 5:-2.5"));
    }
    if (!params.logit_bias.emplace(token, bias).second) {
      return absl::InvalidArgumentError(absl::StrCat("--logit-bias is given twice for token ", token));
    }
  }
  return params;
}

}  // namespace tdock::cli
