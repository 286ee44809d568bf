#include "trainer/rollout_servers/wire/wire.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/json_text.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/utf8.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 32;
constexpr size_t kMostShown = 300;
// Of a token in a reply: its id, its text, its log-probability and those of the most likely ones, with their texts.
constexpr size_t kMostTokenBytes = 512;
constexpr float kRounding = 1e-3F;  // by which a log-probability may be above 0
constexpr absl::string_view kInstancePrefix = "tdock-";

absl::StatusOr<Json> Parse(absl::string_view body) {
  absl::StatusOr<Json> json = ParseJsonObject(body, kDeepest);
  if (json.ok()) return json;
  return absl::InvalidArgumentError(absl::StrCat("its answer is no JSON object: ", json.status().message()));
}

// object[name]; null if there is none.
const Json& At(const Json& object, const char* name) {
  static const Json* const kNone = new Json();
  if (!object.is_object()) return *kNone;
  const auto found = object.find(name);
  return found == object.end() ? *kNone : *found;
}

std::string TextAt(const Json& object, const char* name) {
  const Json& value = At(object, name);
  return value.is_string() ? value.get<std::string>() : "";
}

std::optional<int64_t> Whole(const Json& value) {
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto big = value.get<uint64_t>();
    if (!std::in_range<int64_t>(big)) return std::nullopt;
    return static_cast<int64_t>(big);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)) return number;
  return std::nullopt;
}

// What is an instance is repeated in no message, but compared.
std::string InstanceAt(const Json& object, const char* name) {
  std::string instance = TextAt(object, name);
  return instance.size() <= 64 ? instance : "";
}

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::StatusOr<std::vector<int32_t>> TokensOf(const Json& list, const WireRequest& request, int64_t vocab_size) {
  if (std::cmp_greater(list.size(), request.max_tokens)) {
    return Wrong(absl::StrCat("has ", list.size(), " tokens, and at most ", request.max_tokens, " were asked for"));
  }
  std::vector<int32_t> tokens;
  tokens.reserve(list.size());
  for (const Json& one : list) {
    const std::optional<int64_t> token = one.is_number() ? Whole(one) : std::nullopt;
    if (!token || *token < 0 || *token >= vocab_size) {
      return Wrong(absl::StrCat("has ", EscapeForMessage(AsciiJsonText(one), 40),
                                " among its token_ids; tokens are 0 to ", vocab_size - 1));
    }
    tokens.push_back(static_cast<int32_t>(*token));
  }
  if (tokens.empty()) return Wrong("has no tokens");
  return tokens;
}

absl::StatusOr<std::vector<float>> LogProbsOf(const Json& list, size_t tokens) {
  if (list.size() != tokens) {
    return Wrong(absl::StrCat("has ", tokens, " tokens and ", list.size(), " log-probabilities"));
  }
  std::vector<float> log_probs;
  log_probs.reserve(tokens);
  for (const Json& one : list) {
    const double value = one.is_number() ? one.get<double>() : std::numeric_limits<double>::quiet_NaN();
    const auto log_prob = static_cast<float>(value);
    if (!std::isfinite(log_prob) || log_prob > kRounding) {
      return Wrong(absl::StrCat("has ", EscapeForMessage(AsciiJsonText(one), 40),
                                " among its log-probabilities; each is a finite number that is at most 0"));
    }
    log_probs.push_back(log_prob);
  }
  return log_probs;
}

// Whether the answer ends as one to this request does.
absl::Status CheckEnd(const std::vector<int32_t>& tokens, const std::string& reason, const WireRequest& request) {
  const auto is_end = [&](int32_t token) {
    return std::find(request.ends.begin(), request.ends.end(), token) != request.ends.end();
  };
  const auto end = std::find_if(tokens.begin(), tokens.end(), is_end);
  const auto size = static_cast<int64_t>(tokens.size());
  if (end != tokens.end()) {
    if (const auto at = end - tokens.begin(); at + 1 < size) {
      return Wrong(absl::StrCat("goes on after token ", at + 1, ", which is ", *end, " and ends an answer"));
    }
    if (size >= request.min_tokens) return absl::OkStatus();
    return Wrong(absl::StrCat("ends after ", size, " tokens, and at least ", request.min_tokens, " were asked for"));
  }
  if (reason == "length" && size == request.max_tokens) return absl::OkStatus();
  return Wrong(absl::StrCat("ends with token ", tokens.back(), " after ", size, " of at most ", request.max_tokens,
                            " tokens because of \"", reason, "\", and no token that ends an answer (",
                            absl::StrJoin(request.ends, ", "), "): has the server another model?"));
}

absl::StatusOr<std::vector<WireSpan>> WeightsOf(const Json& list, size_t tokens) {
  std::vector<WireSpan> spans;
  if (!list.is_array()) return spans;
  int64_t all = 0;
  for (const Json& one : list) {
    const std::optional<int64_t> version = Whole(At(one, "version"));
    const std::optional<int64_t> count = Whole(At(one, "tokens"));
    if (!version || !count || *count < 1 || std::cmp_greater(*count, tokens)) {
      return Wrong("has weight_versions that are not a list of {\"version\", \"tokens\"}");
    }
    all += *count;
    spans.push_back({.version = *version, .tokens = *count});
    if (std::cmp_greater(all, tokens)) break;
  }
  if (std::cmp_equal(all, tokens)) return spans;
  return Wrong(absl::StrCat("has ", tokens, " tokens, and weight_versions for ", all));
}

absl::StatusOr<WireAnswer> AnswerOf(const Json& choice, const WireRequest& request, int64_t vocab_size) {
  const Json& ids = At(choice, "token_ids");
  if (!ids.is_array()) {
    return absl::FailedPreconditionError(
        "has no \"token_ids\", which \"return_token_ids\" asks for: `tdock serve` and vLLM since 0.10.2 give them");
  }
  const Json& log_probs = At(At(choice, "logprobs"), "token_logprobs");
  if (!log_probs.is_array()) {
    return absl::FailedPreconditionError("has no \"logprobs.token_logprobs\", which \"logprobs\" asks for");
  }
  const std::string reason = TextAt(choice, "finish_reason");
  if (reason != "stop" && reason != "length") {
    return absl::UnavailableError(absl::StrCat("was ended by the server, with finish_reason ",
                                               reason.empty() ? "missing" : Quoted(reason.substr(0, 40))));
  }
  WireAnswer answer;
  TDOCK_ASSIGN_OR_RETURN(answer.tokens, TokensOf(ids, request, vocab_size));
  TDOCK_ASSIGN_OR_RETURN(answer.log_probs, LogProbsOf(log_probs, answer.tokens.size()));
  TDOCK_RETURN_IF_ERROR(CheckEnd(answer.tokens, reason, request));
  TDOCK_ASSIGN_OR_RETURN(answer.weights, WeightsOf(At(choice, "weight_versions"), answer.tokens.size()));
  return answer;
}

}  // namespace

absl::StatusOr<ServerCard> ReadCard(absl::string_view body, const std::string& model) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, Parse(body));
  const Json& data = At(json, "data");
  std::vector<std::string> names;
  const Json* found = nullptr;
  if (data.is_array()) {
    for (const Json& one : data) {
      const std::string name = TextAt(one, "id");
      if (name.empty()) continue;
      if (model.empty() ? names.empty() : name == model) found = &one;
      names.push_back(name);
    }
  }
  if (names.empty()) return Wrong("it lists no models");
  if (found == nullptr || (model.empty() && names.size() > 1)) {
    return absl::NotFoundError(absl::StrCat(
        model.empty() ? "it has several models; say which (rollout.server_model): "
                      : absl::StrCat("it has no model ", Quoted(model), " (rollout.server_model); it has: "),
        EscapeForMessage(absl::StrJoin(names, ", "), kMostShown)));
  }
  ServerCard card;
  card.model = TextAt(*found, "id");
  card.max_model_len = std::max<int64_t>(Whole(At(*found, "max_model_len")).value_or(0), 0);
  card.instance = InstanceAt(*found, "instance");
  card.weight_version = Whole(At(*found, "weight_version"));
  card.is_tdock = TextAt(*found, "owned_by") == "tdock";
  return card;
}

std::string BodyOf(const WireRequest& request, const ServerCard& card) {
  const WireSampling& sampling = request.sampling;
  // Everything is said: servers have defaults of their own, such as those of the model's generation_config.json.
  Json body = {{"model", card.model},
               {"prompt", request.prompt},
               {"n", request.samples},
               {"max_tokens", request.max_tokens},
               {"min_tokens", request.min_tokens},
               {"temperature", sampling.temperature},
               {"top_k", sampling.top_k == 0 ? -1 : sampling.top_k},  // SGLang refuses 0
               {"top_p", sampling.top_p},
               {"min_p", sampling.min_p},
               {"repetition_penalty", sampling.repetition_penalty},
               {"presence_penalty", sampling.presence_penalty},
               {"frequency_penalty", sampling.frequency_penalty},
               {"logprobs", 0},
               {"return_token_ids", true},
               // An answer ends where it would here, whatever the server takes for an end token.
               {"ignore_eos", true},
               {"stop_token_ids", request.ends}};
  for (const auto& [token, bias] : sampling.logit_bias) body["logit_bias"][absl::StrCat(token)] = bias;
  if (card.is_tdock) {
    body["seed"] = static_cast<int64_t>(sampling.seed);
    body["identity"] = absl::StrCat(request.identity);
  } else {
    body["seed"] = DeriveSeed(sampling.seed, request.identity) >> 33;
  }
  return JsonText(body);
}

size_t MostReplyBytes(const WireRequest& request) {
  const auto answers = static_cast<size_t>(request.samples);
  return (size_t{1} << 20) +
         answers * (16 * request.prompt.size() +
                    kMostTokenBytes * static_cast<size_t>(std::max<int64_t>(request.max_tokens, 1)));
}

absl::StatusOr<WireReply> ReadReply(absl::string_view body, const WireRequest& request, int64_t vocab_size) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, Parse(body));
  const Json& choices = At(json, "choices");
  if (!choices.is_array() || std::cmp_not_equal(choices.size(), request.samples)) {
    return Wrong(absl::StrCat("its answer has ", choices.is_array() ? choices.size() : 0, " choices, and ",
                              request.samples, " were asked for"));
  }
  WireReply reply;
  std::vector<bool> seen(choices.size(), false);
  reply.answers.resize(choices.size());
  for (const Json& choice : choices) {
    const std::optional<int64_t> index = Whole(At(choice, "index"));
    if (!index || *index < 0 || *index >= request.samples || seen[static_cast<size_t>(*index)]) {
      return Wrong(absl::StrCat("its choices must have the indices 0 to ", request.samples - 1, ", each once"));
    }
    absl::StatusOr<WireAnswer> answer = AnswerOf(choice, request, vocab_size);
    if (!answer.ok()) {
      return absl::Status(answer.status().code(), absl::StrCat("its choice ", *index, " ", answer.status().message()));
    }
    seen[static_cast<size_t>(*index)] = true;
    reply.answers[static_cast<size_t>(*index)] = *std::move(answer);
  }
  const std::string fingerprint = InstanceAt(json, "system_fingerprint");
  if (absl::StartsWith(fingerprint, kInstancePrefix)) reply.instance = fingerprint.substr(kInstancePrefix.size());
  return reply;
}

absl::StatusOr<UploadCard> ReadUpload(absl::string_view body) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, Parse(body));
  UploadCard card{.id = TextAt(json, "upload"), .most_piece_bytes = Whole(At(json, "most_piece_bytes")).value_or(0)};
  const bool is_hex = !card.id.empty() && card.id.size() <= 64 &&
                      card.id.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (is_hex && card.most_piece_bytes >= 1) return card;
  return Wrong("its answer to the beginning of an upload has no \"upload\" or no \"most_piece_bytes\"");
}

absl::StatusOr<UpdateCard> ReadUpdate(absl::string_view body) {
  UpdateCard card;
  if (body.empty()) return card;  // the code says it
  TDOCK_ASSIGN_OR_RETURN(const Json json, Parse(body));
  const Json& success = At(json, "success");
  if (success.is_boolean() && !success.get<bool>()) {
    return absl::UnavailableError(
        absl::StrCat("it does not take the weights: ", EscapeForMessage(TextAt(json, "message"), kMostShown)));
  }
  card.weight_version = Whole(At(json, "weight_version"));
  card.instance = InstanceAt(json, "instance");
  return card;
}

}  // namespace tdock::trainer
