// Replies of servers: what is read fits the request.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "trainer/rollout_servers/wire/weight_calls.h"
#include "trainer/rollout_servers/wire/wire.h"

namespace {

using namespace tdock::trainer;

void Check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  const int64_t vocab_size = 100;
  const WireRequest request{
      .prompt = {1}, .samples = 2, .max_tokens = 4, .min_tokens = 2, .ends = {2, 3}, .sampling = {}};
  for (const AnswerForm form : {AnswerForm::kCompletions, AnswerForm::kTokens, AnswerForm::kGenerate}) {
    const auto reply = ReadReply(body, request, vocab_size, form);
    if (!reply.ok()) continue;
    Check(reply->answers.size() == 2);
    for (const WireAnswer& answer : reply->answers) {
      Check(!answer.tokens.empty() && answer.tokens.size() <= 4 && answer.log_probs.size() == answer.tokens.size());
      for (const int32_t token : answer.tokens) Check(token >= 0 && token < vocab_size);
      for (const float log_prob : answer.log_probs) Check(std::isfinite(log_prob) && log_prob < 0.01F);
      int64_t tokens = 0;
      for (const auto& span : answer.weights) tokens += span.tokens;
      Check(answer.weights.empty() || tokens == static_cast<int64_t>(answer.tokens.size()));
    }
  }
  if (const auto card = ReadCard(body, ""); card.ok()) Check(!card->model.empty() && card->max_model_len >= 0);
  if (const auto upload = ReadUpload(body); upload.ok()) Check(!upload->id.empty() && upload->most_piece_bytes >= 1);
  static_cast<void>(ReadUpdate(body));
  static_cast<void>(ReadLabel(body));
  if (const auto version = ReadProgramVersion(body); version.ok()) Check(!version->empty() && version->size() <= 40);
  if (const auto ranks = ReadRanks(body); ranks.ok()) Check(*ranks >= 1 && *ranks <= 65536);
  if (const auto digests = ReadDigests(body); digests.ok()) {
    for (const auto& [name, ranks] : *digests) Check(!ranks.empty() && ranks.front().size() >= 16);
  }
  return 0;
}
