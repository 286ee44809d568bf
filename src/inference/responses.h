// Answers in the form of OpenAI's /v1/responses: a list of items, whole or as events.
//
//   reasoning, text, calls  ─►  {"type": "reasoning"}, {"type": "message"}, {"type": "function_call"}, …
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/json_text.h"
#include "inference/protocol/ask.h"
#include "inference/replies.h"
#include "inference/served_model.h"
#include "text/replies/reply_parser.h"

namespace tdock::inference {

// The output of one response, put together from the deltas of a reply. Not thread-safe.
class ResponseItems {
 public:
  // `id`: that of the response, from which those of items follow.
  explicit ResponseItems(std::string id) : id_(std::move(id)) {}

  // Those of tokens that have come; the text that follows has them.
  void AddLogProbs(nlohmann::ordered_json log_probs);
  void Add(const text::ReplyDelta& delta);
  // Ends the last item. It is incomplete if the answer was cut off in it, or if it is a call that cannot be read.
  void Finish(bool is_whole = true);

  // Events that have not been taken, without their numbers.
  std::vector<nlohmann::ordered_json> TakeEvents();
  // Those that have ended.
  const nlohmann::ordered_json& items() const { return items_; }

 private:
  enum class Kind { kNone, kReasoning, kMessage, kCall };

  void Open(Kind kind, const text::ReplyDelta& delta);
  void AddText(const text::ReplyDelta& delta);
  void AddArguments(const std::string& text);
  void CloseText();
  nlohmann::ordered_json PartOf(const std::string& text) const;
  // An event of the item that is open.
  nlohmann::ordered_json EventOfItem(const char* type) const;

  const std::string id_;
  Kind open_ = Kind::kNone;
  nlohmann::ordered_json item_;       // that is open
  std::string text_;                  // of it
  nlohmann::ordered_json log_probs_;  // of its text
  nlohmann::ordered_json pending_log_probs_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json items_ = nlohmann::ordered_json::array();
  std::vector<nlohmann::ordered_json> events_;
};

// Writes one response, which is one answer.
class ResponseWriter final : public ReplyWriter {
 public:
  // The model must outlive it.
  ResponseWriter(const Ask& ask, std::string id, int64_t created, const ServedModel& model);

  const std::string& id() const override { return id_; }
  std::string Whole(std::span<const Piece> answers, const Usage& usage) override;
  std::string Opening(int64_t index) override;
  std::string Event(const Piece& piece) override;
  std::string Closing(const Usage& usage) override;

 private:
  void Read(const Piece& piece);
  nlohmann::ordered_json Response(const char* status) const;
  nlohmann::ordered_json Ended(const Usage& usage) const;
  std::string Numbered(nlohmann::ordered_json event);
  std::string NewEvents();

  const bool log_probs_, token_ids_;
  const std::string id_;
  const int64_t created_;
  const ServedModel& model_;
  const std::string repeated_;
  ResponseItems items_;
  int64_t events_ = 0;  // that were written
  std::optional<engine::FinishReason> finish_ = {};
  std::vector<engine::NewToken> tokens_;  // without their log-probabilities
  std::vector<int32_t> prompt_;
};

}  // namespace tdock::inference
