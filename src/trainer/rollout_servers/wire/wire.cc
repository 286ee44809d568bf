#include "trainer/rollout_servers/wire/wire.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/json_text.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/rollout_servers/wire/reply_json.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostShown = 300;
// Of a token in a reply: its id, its text, its log-probability and those of the most likely ones, with their texts.
constexpr size_t kMostTokenBytes = 512;
constexpr float kRounding = 1e-3F;  // by which a log-probability may be above 0
constexpr absl::string_view kInstancePrefix = "tdock-";

// SGLang's own answers, as {"choices": [answer, …]}: several are a list, and a single one is an object.
absl::StatusOr<Json> ParseNative(absl::string_view body) {
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(body);
  const bool is_list = absl::StartsWith(text, "[");
  return ParseReply(absl::StrCat("{\"choices\":", is_list ? "" : "[", text, is_list ? "" : "]", "}"));
}

// Returns an instance, which is compared and appears in no message.
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

// The log-probability in an element of the list of them.
const Json& LogProbIn(const Json& element, AnswerForm form) {
  if (form == AnswerForm::kCompletions) return element;
  if (form == AnswerForm::kTokens) return At(element, "logprob");
  return element.is_array() && !element.empty() ? element[0] : At(element, "");
}

absl::StatusOr<std::vector<float>> LogProbsOf(const Json& list, AnswerForm form, size_t tokens) {
  if (list.size() != tokens) {
    return Wrong(absl::StrCat("has ", tokens, " tokens and ", list.size(), " log-probabilities"));
  }
  std::vector<float> log_probs;
  log_probs.reserve(tokens);
  for (const Json& element : list) {
    const Json& one = LogProbIn(element, form);
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

// Checks that the answer ends as one to this request does.
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

// From a list of {"version", "tokens"}, as `tdock serve` has it, or of {"version", "start", "end"}.
absl::StatusOr<std::vector<WireSpan>> WeightsOf(const Json& list, size_t tokens) {
  std::vector<WireSpan> spans;
  if (!list.is_array()) return spans;
  int64_t all = 0;
  for (const Json& one : list) {
    const bool is_range = !At(one, "end").is_null();
    const Json& label = At(one, "version");
    std::optional<int64_t> version = Whole(label);
    if (is_range && !version && label.is_string()) version = kUnknownVersion;
    std::optional<int64_t> count = Whole(At(one, is_range ? "end" : "tokens"));
    if (is_range && count && Whole(At(one, "start")) != all) count.reset();
    if (is_range && count) *count = *count > all ? *count - all : 0;
    if (!version || !count || *count < 1 || std::cmp_greater(*count, tokens)) {
      return Wrong(
          "has weight_versions that are not a list of {\"version\", \"tokens\"} or of {\"version\", \"start\", "
          "\"end\"}, one after another");
    }
    all += *count;
    spans.push_back({.version = *version, .tokens = *count});
    if (std::cmp_greater(all, tokens)) break;
  }
  if (std::cmp_equal(all, tokens)) return spans;
  return Wrong(absl::StrCat("has ", tokens, " tokens, and weight_versions for ", all));
}

// The parts of an answer, whatever its form; a part that is not there is null.
struct ChoiceParts {
  const Json& ids;
  const Json& log_probs;  // a list, for LogProbIn()
  std::string reason;
  const Json& weights;
  const Json& weight;  // the only version, where there is no list of them
};

ChoiceParts PartsOf(const Json& choice, AnswerForm form) {
  if (form == AnswerForm::kGenerate) {
    const Json& meta = At(choice, "meta_info");
    return {.ids = At(choice, "output_ids"),
            .log_probs = At(meta, "output_token_logprobs"),
            .reason = TextAt(At(meta, "finish_reason"), "type"),
            .weights = At(meta, "weight_versions"),
            .weight = At(meta, "weight_version")};
  }
  const Json& log_probs = At(choice, "logprobs");
  return {.ids = At(choice, "token_ids"),
          .log_probs = At(log_probs, form == AnswerForm::kTokens ? "content" : "token_logprobs"),
          .reason = TextAt(choice, "finish_reason"),
          .weights = At(choice, "weight_versions"),
          .weight = At(Json(), "")};
}

absl::Status Lacks(AnswerForm form, bool log_probs) {
  switch (form) {
    case AnswerForm::kCompletions:
      return absl::FailedPreconditionError(
          log_probs ? "has no \"logprobs.token_logprobs\", which \"logprobs\" asks for"
                    : "has no \"token_ids\", which \"return_token_ids\" asks for: `tdock serve`, vLLM since 0.10.2 and "
                      "SGLang since 0.5.23 give them");
    case AnswerForm::kTokens:
      return absl::FailedPreconditionError(
          log_probs ? "has no \"logprobs.content\", which sampling_params.logprobs asks for" : "has no \"token_ids\"");
    case AnswerForm::kGenerate:
      break;
  }
  return absl::FailedPreconditionError(
      log_probs ? "has no \"meta_info.output_token_logprobs\", which \"return_logprob\" asks for"
                : "has no \"output_ids\"");
}

absl::StatusOr<WireAnswer> AnswerOf(const Json& choice, const WireRequest& request, int64_t vocab_size,
                                    AnswerForm form) {
  const ChoiceParts parts = PartsOf(choice, form);
  if (!parts.ids.is_array()) return Lacks(form, /*log_probs=*/false);
  if (!parts.log_probs.is_array()) return Lacks(form, /*log_probs=*/true);
  if (parts.reason != "stop" && parts.reason != "length") {
    return absl::UnavailableError(absl::StrCat("was ended by the server, with finish_reason ",
                                               parts.reason.empty() ? "missing" : Quoted(parts.reason.substr(0, 40))));
  }
  WireAnswer answer;
  TDOCK_ASSIGN_OR_RETURN(answer.tokens, TokensOf(parts.ids, request, vocab_size));
  TDOCK_ASSIGN_OR_RETURN(answer.log_probs, LogProbsOf(parts.log_probs, form, answer.tokens.size()));
  TDOCK_RETURN_IF_ERROR(CheckEnd(answer.tokens, parts.reason, request));
  TDOCK_ASSIGN_OR_RETURN(answer.weights, WeightsOf(parts.weights, answer.tokens.size()));
  if (answer.weights.empty() && parts.weight.is_string()) {
    answer.weights = {{.version = Whole(parts.weight).value_or(kUnknownVersion),
                       .tokens = static_cast<int64_t>(answer.tokens.size())}};
  }
  return answer;
}

ServerKind KindOf(const std::string& owner) {
  if (owner == "tdock") return ServerKind::kTdock;
  if (owner == "vllm") return ServerKind::kVllm;
  return owner == "sglang" ? ServerKind::kSglang : ServerKind::kOther;
}

// True for a folder that weights were sent in, as SGLang calls its model after that.
bool IsOurFolder(const Json& card) {
  const std::string name = TextAt(card, "id");
  return KindOf(TextAt(card, "owned_by")) == ServerKind::kSglang &&
         absl::StartsWith(name.substr(name.rfind('/') + 1), kFolderPrefix);
}

// The fields of sampling that OpenAI's completions and vLLM's own interface name alike. Everything is said: servers
// have defaults of their own, such as those of the model's generation_config.json.
Json SamplingJson(const WireRequest& request) {
  const WireSampling& sampling = request.sampling;
  Json json = {{"n", request.samples},
               {"max_tokens", request.max_tokens},
               {"min_tokens", request.min_tokens},
               {"temperature", sampling.temperature},
               {"top_k", sampling.top_k == 0 ? -1 : sampling.top_k},  // SGLang refuses 0
               {"top_p", sampling.top_p},
               {"min_p", sampling.min_p},
               {"repetition_penalty", sampling.repetition_penalty},
               {"presence_penalty", sampling.presence_penalty},
               {"frequency_penalty", sampling.frequency_penalty},
               // An answer ends where it would here, whatever the server takes for an end token.
               {"ignore_eos", true},
               {"stop_token_ids", request.ends},
               {"seed", DeriveSeed(sampling.seed, request.identity) >> 33}};
  for (const auto& [token, bias] : sampling.logit_bias) json["logit_bias"][absl::StrCat(token)] = bias;
  return json;
}

void Rename(Json& json, const char* from, const char* to) {
  json[to] = json[from];
  json.erase(from);
}

}  // namespace

absl::string_view KindName(ServerKind kind) {
  switch (kind) {
    case ServerKind::kTdock:
      return "`tdock serve`";
    case ServerKind::kVllm:
      return "vLLM";
    case ServerKind::kSglang:
      return "SGLang";
    case ServerKind::kOther:
      break;
  }
  return "a server of another kind";
}

absl::string_view PathOf(AnswerForm form) {
  switch (form) {
    case AnswerForm::kTokens:
      return "/inference/v1/generate";
    case AnswerForm::kGenerate:
      return "/generate";
    case AnswerForm::kCompletions:
      break;
  }
  return "/v1/completions";
}

absl::StatusOr<ServerCard> ReadCard(absl::string_view body, const std::string& model) {
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseReply(body));
  const Json& data = At(json, "data");
  std::vector<std::string> names;
  const Json* found = nullptr;
  if (data.is_array()) {
    for (const Json& one : data) {
      const std::string name = TextAt(one, "id");
      if (name.empty()) continue;
      if (model.empty() ? names.empty() : name == model || (found == nullptr && IsOurFolder(one))) found = &one;
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
  card.dtype = TextAt(*found, "dtype");
  card.kernels = TextAt(*found, "kernels");
  card.instance = InstanceAt(*found, "instance");
  card.weight_version = Whole(At(*found, "weight_version"));
  card.kind = KindOf(TextAt(*found, "owned_by"));
  card.says_weights = card.answers_say_weights = card.is_tdock();
  return card;
}

absl::Status CheckNumbers(const ServerCard& card, const WantedCard& wanted) {
  if (!card.dtype.empty() && !wanted.dtype.empty() && card.dtype != wanted.dtype) {
    return absl::FailedPreconditionError(
        absl::StrCat("it computes in ", EscapeForMessage(card.dtype), ", and this run in ", wanted.dtype,
                     " (model.compute_dtype), so its answers would follow from other numbers; start it with --dtype ",
                     wanted.dtype));
  }
  if (!card.kernels.empty() && !wanted.kernels.empty() && card.kernels != wanted.kernels) {
    return absl::FailedPreconditionError(
        absl::StrCat("it computes with ", EscapeForMessage(card.kernels), ", and this run with ", wanted.kernels,
                     " (model.kernels), so the last bits of its answers would be others; start it with --kernels ",
                     wanted.kernels, ", or start both with instructions that both have"));
  }
  return absl::OkStatus();
}

std::string BodyOf(const WireRequest& request, const ServerCard& card) {
  Json sampling = SamplingJson(request);
  Json body;
  switch (card.form) {
    case AnswerForm::kCompletions:
      body = std::move(sampling);
      body.update({{"model", card.model}, {"prompt", request.prompt}, {"logprobs", 0}, {"return_token_ids", true}});
      break;
    case AnswerForm::kTokens:
      sampling.update({{"logprobs", 0}, {"detokenize", false}});
      body = {{"model", card.model}, {"token_ids", request.prompt}, {"sampling_params", std::move(sampling)}};
      break;
    case AnswerForm::kGenerate:
      Rename(sampling, "max_tokens", "max_new_tokens");
      Rename(sampling, "min_tokens", "min_new_tokens");
      Rename(sampling, "seed", "sampling_seed");
      sampling.update({{"no_stop_trim", true}, {"skip_special_tokens", false}});
      body = {{"input_ids", request.prompt}, {"sampling_params", std::move(sampling)}, {"return_logprob", true}};
      break;
  }
  if (card.is_tdock()) {
    body["seed"] = static_cast<int64_t>(request.sampling.seed);
    body["identity"] = absl::StrCat(request.identity);
  } else if (card.weight_version) {
    // Separates what the server keeps of prompts by the weights that have read them.
    if (card.kind == ServerKind::kVllm) body["cache_salt"] = absl::StrCat("tdock-", *card.weight_version);
    if (card.kind == ServerKind::kSglang) body["extra_key"] = absl::StrCat("tdock-", *card.weight_version);
  }
  return JsonText(body);
}

size_t MostReplyBytes(const WireRequest& request) {
  const auto answers = static_cast<size_t>(request.samples);
  return (size_t{1} << 20) +
         answers * (16 * request.prompt.size() +
                    kMostTokenBytes * static_cast<size_t>(std::max<int64_t>(request.max_tokens, 1)));
}

absl::StatusOr<WireReply> ReadReply(absl::string_view body, const WireRequest& request, int64_t vocab_size,
                                    AnswerForm form) {
  const bool is_native = form == AnswerForm::kGenerate;
  TDOCK_ASSIGN_OR_RETURN(const Json json, is_native ? ParseNative(body) : ParseReply(body));
  const Json& choices = At(json, "choices");
  if (!choices.is_array() || std::cmp_not_equal(choices.size(), request.samples)) {
    return Wrong(absl::StrCat("its answer has ", choices.is_array() ? choices.size() : 0, " choices, and ",
                              request.samples, " were asked for"));
  }
  WireReply reply;
  std::vector<bool> seen(choices.size(), false);
  reply.answers.resize(choices.size());
  int64_t place = 0;
  for (const Json& choice : choices) {
    const std::optional<int64_t> index = is_native ? place++ : Whole(At(choice, "index"));
    if (!index || *index < 0 || *index >= request.samples || seen[static_cast<size_t>(*index)]) {
      return Wrong(absl::StrCat("its choices must have the indices 0 to ", request.samples - 1, ", each once"));
    }
    absl::StatusOr<WireAnswer> answer = AnswerOf(choice, request, vocab_size, form);
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
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseReply(body));
  UploadCard card{.id = TextAt(json, "upload"), .most_piece_bytes = Whole(At(json, "most_piece_bytes")).value_or(0)};
  const bool is_hex = !card.id.empty() && card.id.size() <= 64 &&
                      card.id.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (is_hex && card.most_piece_bytes >= 1) return card;
  return Wrong("its answer to the beginning of an upload has no \"upload\" or no \"most_piece_bytes\"");
}

absl::StatusOr<UpdateCard> ReadUpdate(absl::string_view body) {
  UpdateCard card;
  if (body.empty()) return card;  // the code says it
  TDOCK_ASSIGN_OR_RETURN(const Json json, ParseReply(body));
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
