#include "inference/protocol/ask_fields.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

std::optional<std::vector<std::string>> ReadStops(const Json& value, const AskLimits& limits, Fields& fields) {
  if (value.is_array() && std::cmp_greater(value.size(), limits.max_stops)) {
    fields.Fail(absl::StrCat("has ", value.size(), " texts, and may have ", limits.max_stops));
    return std::nullopt;
  }
  std::vector<std::string> stops;
  const auto add = [&](const Json& stop) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      fields.Fail("must be a text, or a list of texts, none of them empty");
      return false;
    }
    const std::string& text = stop.get_ref<const std::string&>();
    if (std::cmp_greater(text.size(), limits.max_stop_bytes)) {
      fields.Fail(absl::StrCat("has a text of ", text.size(), " bytes, and one may have ", limits.max_stop_bytes));
      return false;
    }
    stops.push_back(text);
    return true;
  };
  const bool fits = value.is_array() ? std::all_of(value.begin(), value.end(), add) : add(value);
  return fits ? std::optional(std::move(stops)) : std::nullopt;
}

// Different tokens, in their order.
std::optional<std::vector<int32_t>> ReadTokenSet(const Json& value, const AskLimits& limits, Fields& fields) {
  if (!value.is_array()) {
    fields.Fail("must be a list of token ids");
    return std::nullopt;
  }
  auto tokens = ReadTokens(value, fields);
  if (!tokens) return std::nullopt;
  std::sort(tokens->begin(), tokens->end());
  tokens->erase(std::unique(tokens->begin(), tokens->end()), tokens->end());
  if (std::cmp_greater(tokens->size(), limits.max_stop_tokens)) {
    fields.Fail(absl::StrCat("has ", tokens->size(), " different tokens, and may have ", limits.max_stop_tokens));
    return std::nullopt;
  }
  return std::vector<int32_t>(*tokens);  // without room for what was there twice
}

std::optional<std::map<int32_t, double>> ReadBias(const Json& value, const AskLimits& limits, Fields& fields) {
  std::map<int32_t, double> bias;
  if (!value.is_object()) {
    fields.Fail("must be an object of token ids and numbers");
    return std::nullopt;
  }
  if (std::cmp_greater(value.size(), limits.max_biases)) {
    fields.Fail(absl::StrCat("has ", value.size(), " tokens, and may have ", limits.max_biases));
    return std::nullopt;
  }
  for (const auto& [name, number] : value.items()) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(name, &token) || token < 0 || !number.is_number() || std::abs(number.get<double>()) > 100) {
      fields.Fail("must have token ids for names, and for values numbers from -100 to 100");
      return std::nullopt;
    }
    bias[token] = number.get<double>();
  }
  return bias;
}

// As vLLM has them.
constexpr DefaultField kVllmDefaults[] = {
    {"bad_words", "[]", "give \"stop\" or \"logit_bias\""},
    {"guided_grammar", "null", "grammars are JSON schemas, regular expressions and choices"},
    {"guided_whitespace_pattern", "null", "between tokens of JSON there are at most two blanks"},
    {"kv_transfer_params", "null", "keys and values stay with this server"},
    {"length_penalty", "1", "it is of beam search, which this server does not do"},
    {"logits_processors", "[]", "this server runs no code of clients"},
    {"mm_processor_kwargs", "null", "the model reads text"},
    {"mm_processor_kwargs", "{}", "the model reads text"},
    {"return_tokens_as_token_ids", "false", "\"return_token_ids\" gives the ids beside the texts"},
    {"spaces_between_special_tokens", "true", "texts are as the tokenizer decodes them"},
    {"use_beam_search", "false", "answers are sampled"},
    {"vllm_xargs", "{}", "they are of vLLM"},
};

}  // namespace

std::optional<std::vector<int32_t>> ReadTokens(const Json& value, Fields& fields) {
  std::vector<int32_t> tokens;
  for (const Json& token : value) {
    if (!token.is_number_integer() || token.is_number_float() || token < 0 || token > kMaxInteger) {
      fields.Fail(absl::StrCat("has ", EscapeUnprintable(JsonText(token), 40),
                               " among its tokens; each must be a whole number ≥ 0"));
      return std::nullopt;
    }
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

SamplingAsk ReadSamplingFields(Fields& fields, const AskLimits& limits, int64_t min_max_tokens) {
  SamplingAsk ask;
  ask.temperature = fields.Number({"temperature"}, 0, 100);
  ask.top_p = fields.Number({"top_p"}, 0, 1);
  if (ask.top_p && *ask.top_p <= 0) fields.Fail("must be above 0");
  ask.min_p = fields.Number({"min_p"}, 0, 1);
  if (ask.min_p && *ask.min_p >= 1) fields.Fail("must be below 1");
  ask.repetition_penalty = fields.Number({"repetition_penalty"}, 0.01, 100);
  ask.presence_penalty = fields.Number({"presence_penalty"}, -2, 2);
  ask.frequency_penalty = fields.Number({"frequency_penalty"}, -2, 2);
  ask.top_k = fields.Integer({"top_k"}, -1, kMaxInteger);
  if (ask.top_k == -1) ask.top_k = 0;  // as vLLM and SGLang say "all"
  ask.max_tokens = fields.Integer({"max_completion_tokens", "max_tokens", "max_new_tokens", "max_output_tokens"},
                                  min_max_tokens, kMaxInteger);
  ask.min_tokens = fields.Integer({"min_tokens", "min_new_tokens"}, 0, kMaxInteger);
  if (const auto seed = fields.Integer({"seed", "sampling_seed"}, std::numeric_limits<int64_t>::min(),
                                       std::numeric_limits<int64_t>::max())) {
    ask.seed = static_cast<uint64_t>(*seed);
  }
  ask.ignore_eos = fields.Bool({"ignore_eos"});
  if (const Json* stop = fields.Take({"stop"})) ask.stop = ReadStops(*stop, limits, fields);
  if (const Json* ids = fields.Take({"stop_token_ids"})) ask.stop_token_ids = ReadTokenSet(*ids, limits, fields);
  if (const Json* ids = fields.Take({"allowed_token_ids"})) {
    ask.allowed_token_ids = ReadTokenSet(*ids, limits, fields);
    if (ask.allowed_token_ids && ask.allowed_token_ids->empty()) fields.Fail("is empty: no token could be sampled");
  }
  if (const Json* bias = fields.Take({"logit_bias"})) ask.logit_bias = ReadBias(*bias, limits, fields);
  return ask;
}

void ReadWhatChangesNothing(Fields& fields) {
  fields.Ignore({"cache_salt", "guided_decoding_backend", "metadata", "priority", "prompt_cache_key",
                 "prompt_cache_retention", "safety_identifier", "service_tier", "store", "user"});
  fields.RefuseOthers(kVllmDefaults);
}

}  // namespace tdock::inference
