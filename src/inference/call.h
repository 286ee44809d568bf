// A request for answers, from its body to its last byte.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/base/work_queue.h"
#include "core/http/server.h"
#include "engine/engine.h"
#include "engine/stop_text.h"
#include "inference/metrics.h"
#include "inference/protocol/ask.h"
#include "inference/protocol/problem.h"
#include "inference/replica.h"
#include "inference/replies.h"
#include "inference/reply_stream.h"
#include "inference/served_model.h"

namespace tdock::inference {

// {"error": …} with its status.
http::Response ResponseOf(const Problem& problem);

// Made by std::make_shared. The engine's thread tells it of tokens. It ends by itself when its answers have, or its
// client is gone. Thread-safe.
//
// A client that reads slowly gets fewer events with more text in each: what it has not read stays as tokens, which are
// bounded by the length of the answer.
class Call : public std::enable_shared_from_this<Call> {
 public:
  // The model, the metrics and the writers must outlive it. Calls `on_done` once, when its last answer has ended. The
  // writers then write what is left of the reply: all of it where it is not streamed, which may be long, while the
  // engine's thread goes on with others.
  Call(const Ask& ask, std::string id, std::shared_ptr<http::Exchange> exchange, const ServedModel& model,
       Metrics& metrics, WorkQueue& writers, std::function<void()> on_done);

  // One request for each prompt. Nothing is asked of the replica any more when the call has ended.
  void Start(std::vector<engine::Request> requests, Replica& replica) TDOCK_EXCLUDES(mu_);
  // Ends its answers as they are, without any tokens if it has not started; what they have is sent.
  void Abort() TDOCK_EXCLUDES(mu_);

 private:
  struct Choice {
    Piece next = {};  // what has not been sent
    std::unique_ptr<ReplyStream> reply = {};
    const std::vector<int32_t>* prompt = nullptr;
    absl::Time last_token = absl::InfinitePast();
    int64_t tokens = 0;  // that have come
    engine::FinishReason finish = engine::FinishReason::kAborted;
    bool ended = false;
  };

  absl::Status Ask(std::vector<engine::Request> requests) TDOCK_EXCLUDES(mu_);
  absl::Status AskLocked(std::vector<engine::Request> requests) TDOCK_REQUIRES(mu_);
  std::unique_ptr<ReplyStream> ReadAnswer(const Choice& choice) const;
  void AddToken(Choice& choice, const engine::NewToken& token) TDOCK_REQUIRES(mu_);
  void OnToken(size_t index, const engine::NewToken& token) TDOCK_EXCLUDES(mu_);
  void OnEnd(size_t first, engine::Answer answer) TDOCK_EXCLUDES(mu_);
  void EndChoice(Choice& choice, engine::Answer& answer) TDOCK_REQUIRES(mu_);
  // Where there is something to show.
  void SendEvent(Choice& choice) TDOCK_REQUIRES(mu_);
  // The client has left.
  void OnGone() TDOCK_EXCLUDES(mu_);
  // The rest is of no use then.
  void Fail(const absl::Status& status) TDOCK_REQUIRES(mu_);
  void Finish() TDOCK_EXCLUDES(mu_);
  struct Rest {
    std::vector<Piece> pieces = {};
    Usage usage = {};
  };
  // Nothing where it has failed.
  std::optional<Rest> TakeRest() TDOCK_EXCLUDES(mu_);
  void Write(const Rest& rest) const;
  std::string Note() const TDOCK_REQUIRES(mu_);

  const int64_t samples_;
  const bool streams_, shows_tokens_;
  const std::vector<std::string> stop_texts_;
  const engine::StopTexts stops_;
  const ReplyReading reading_;
  const ServedModel& model_;
  Metrics& metrics_;
  WorkQueue& writers_;
  const std::shared_ptr<http::Exchange> exchange_;
  const std::unique_ptr<ReplyWriter> replies_;  // used under mu_, or once all answers have ended
  const std::function<void()> on_done_;
  const absl::Time begun_;
  Replica* replica_ = nullptr;

  Mutex mu_;
  std::vector<std::vector<int32_t>> prompts_ TDOCK_GUARDED_BY(mu_);
  std::vector<engine::RequestId> ids_ TDOCK_GUARDED_BY(mu_);
  std::vector<Choice> choices_ TDOCK_GUARDED_BY(mu_);
  size_t left_ TDOCK_GUARDED_BY(mu_) = 0;  // choices that have not ended
  bool failed_ TDOCK_GUARDED_BY(mu_) = false;
  bool aborted_ TDOCK_GUARDED_BY(mu_) = false;
  Usage usage_ TDOCK_GUARDED_BY(mu_);
};

}  // namespace tdock::inference
