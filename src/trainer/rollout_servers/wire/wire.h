// What is said to servers and what they say. Replies are read as hostile bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tdock::trainer {

// Programs that are told apart, by the owner of their models.
enum class ServerKind { kOther, kTdock, kVllm, kSglang };
// "`tdock serve`", "vLLM", "SGLang", "a server of another kind".
absl::string_view KindName(ServerKind kind);

// Interfaces that answers are asked through.
enum class AnswerForm {
  kCompletions,  // POST /v1/completions: OpenAI's, with token ids
  kTokens,       // POST /inference/v1/generate: vLLM's, which says which weights made each token
  kGenerate,     // POST /generate: SGLang's, which says it, too
};
absl::string_view PathOf(AnswerForm form);

// A server and its model, as it describes them.
struct ServerCard {
  std::string model = {};
  int64_t max_model_len = 0;                   // tokens, with the prompt; 0: it does not say
  std::string dtype = {};                      // in which it computes, such as "bfloat16"; empty: it does not say
  std::string kernels = {};                    // that it computes with, such as "avx2"; empty: it does not say
  std::string instance = {};                   // another one after each start; empty: it does not say
  std::optional<int64_t> weight_version = {};  // its own number
  ServerKind kind = ServerKind::kOther;
  AnswerForm form = AnswerForm::kCompletions;
  bool says_weights = false;         // the server says which weights it has
  bool answers_say_weights = false;  // each answer says which weights made it

  bool is_tdock() const { return kind == ServerKind::kTdock; }
};

// A server's model and its numbers. Empty: any.
struct WantedCard {
  std::string model = {}, dtype = {}, kernels = {};
};

// FailedPrecondition if the server says that it computes in another dtype or with other instructions.
absl::Status CheckNumbers(const ServerCard& card, const WantedCard& wanted);

// From the answer to GET /v1/models: the card of `model`, or, where that is empty, the only one. InvalidArgument for
// what is no such answer, NotFound, listing its models, if it is not among them or there are several. SGLang calls its
// model by the folder of its last weights: one that we have written counts as `model`.
absl::StatusOr<ServerCard> ReadCard(absl::string_view body, const std::string& model);

// Begins the name of each folder of weights that servers are told to read.
inline constexpr char kFolderPrefix[] = "weights-";

// As the fields of engine::SamplingParams with these names.
struct WireSampling {
  double temperature = 1.0, top_p = 1.0, min_p = 0.0;
  int64_t top_k = 0;
  double repetition_penalty = 1.0, presence_penalty = 0.0, frequency_penalty = 0.0;
  std::map<int32_t, double> logit_bias = {};
  uint64_t seed = 0;
};

// A prompt that is asked for a number of answers.
struct WireRequest {
  std::vector<int32_t> prompt = {};
  int64_t samples = 1;
  int64_t max_tokens = 1, min_tokens = 0;  // of an answer
  std::vector<int32_t> ends = {};          // the tokens that end an answer; no other does
  WireSampling sampling = {};
  uint64_t identity = 0;  // as engine::Prompt::identity
};

// The body of a request in the form of the card.
std::string BodyOf(const WireRequest& request, const ServerCard& card);

// The most bytes that the reply may have.
size_t MostReplyBytes(const WireRequest& request);

inline constexpr int64_t kUnknownVersion = -1;

// Tokens that follow one another and were sampled with the same weights.
struct WireSpan {
  int64_t version = 0, tokens = 0;  // kUnknownVersion: a label that is no number
  bool operator==(const WireSpan&) const = default;
};

struct WireAnswer {
  std::vector<int32_t> tokens = {};  // the end token included
  std::vector<float> log_probs = {};
  // By the server's own numbers; empty: it does not say.
  std::vector<WireSpan> weights = {};
};

struct WireReply {
  std::string instance = {};
  std::vector<WireAnswer> answers = {};  // by their index
};

// A whole reply. FailedPrecondition if the server gives no token ids or log-probabilities, Unavailable if it ended an
// answer for a reason of its own, InvalidArgument for everything else that does not fit the request.
absl::StatusOr<WireReply> ReadReply(absl::string_view body, const WireRequest& request, int64_t vocab_size,
                                    AnswerForm form = AnswerForm::kCompletions);

// Answer of a `tdock serve` to the beginning of an upload.
struct UploadCard {
  std::string id = {};
  int64_t most_piece_bytes = 0;
};
absl::StatusOr<UploadCard> ReadUpload(absl::string_view body);

// Answer of a server that serves other weights. Unavailable, with its message, if it says that it does not.
struct UpdateCard {
  std::optional<int64_t> weight_version = {};
  std::string instance = {};
};
absl::StatusOr<UpdateCard> ReadUpdate(absl::string_view body);

}  // namespace tdock::trainer
