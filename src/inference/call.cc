#include "inference/call.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/json_text.h"
#include "inference/failure.h"
#include "inference/requests.h"
#include "inference/responses.h"

namespace tdock::inference {
namespace {

// Events wait while a client has this much to read.
constexpr size_t kEnoughUnread = 16 << 10;

// Tokens that end its answers. Beside a grammar, stop tokens are text like any other.
std::vector<int32_t> EndTokensOf(const Ask& ask, const ServedModel& model) {
  std::vector<int32_t> tokens;
  if (!ask.sampling.ignore_eos.value_or(model.preferred.ignore_eos.value_or(false))) tokens = model.end_tokens;
  const auto stops = ask.sampling.stop_token_ids ? ask.sampling.stop_token_ids : model.preferred.stop_token_ids;
  if (stops && !ask.grammar) tokens.insert(tokens.end(), stops->begin(), stops->end());
  return tokens;
}

ReplyReading ReadingOf(const Ask& ask, const ServedModel& model) {
  ReplyReading reading{.spells_specials = !ask.skip_special_tokens,
                       .keeps_stop = ask.include_stop,
                       .end_tokens = EndTokensOf(ask, model)};
  reading.options.reads_reasoning = ask.reads_reply && model.has_reasoning;
  if (!ask.reads_reply) return reading;
  reading.form = model.reply_form;
  reading.options.reads_calls = !ask.context.tools.empty();
  reading.options.tools = ask.context.tools;
  return reading;
}

std::unique_ptr<ReplyWriter> WriterOf(const Ask& ask, std::string id, const ServedModel& model) {
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  if (ask.form != Form::kResponses) return std::make_unique<Replies>(ask, std::move(id), now, model);
  return std::make_unique<ResponseWriter>(ask, std::move(id), now, model);
}

std::vector<std::string> StopsOf(const Ask& ask, const ServedModel& model) {
  return ask.sampling.stop.value_or(model.preferred.stop.value_or(std::vector<std::string>()));
}

}  // namespace

http::Response ResponseOf(const Problem& problem) { return {.status = problem.status, .body = BodyOf(problem)}; }

Call::Call(const inference::Ask& ask, std::string id, std::shared_ptr<http::Exchange> exchange,
           const ServedModel& model, Metrics& metrics, WorkQueue& writers, std::function<void()> on_done)
    : samples_(ask.n),
      streams_(ask.stream),
      shows_tokens_(ask.log_probs.has_value() || ask.token_ids),
      stop_texts_(StopsOf(ask, model)),
      stops_(stop_texts_),
      reading_(ReadingOf(ask, model)),
      model_(model),
      metrics_(metrics),
      writers_(writers),
      exchange_(std::move(exchange)),
      replies_(WriterOf(ask, std::move(id), model)),
      on_done_(std::move(on_done)),
      begun_(Clock::Real().Now()) {}

void Call::Start(std::vector<engine::Request> requests, Replica& replica) {
  replica_ = &replica;
  const absl::Status asked = Ask(std::move(requests));
  if (!asked.ok()) {
    Abort();
    bool none = false;
    {
      const MutexLock lock(mu_);
      none = ids_.empty();  // else the last of these says that it is done
      exchange_->Note(Note());
    }
    exchange_->Send(ResponseOf(ProblemOf(asked)));
    if (none) on_done_();
    return;
  }
  exchange_->OnGone([self = weak_from_this()] {
    if (const std::shared_ptr<Call> call = self.lock()) call->OnGone();
  });
}

void Call::OnGone() {
  {
    const MutexLock lock(mu_);
    exchange_->Note(Note());
  }
  Abort();
}

// Under the lock, so that no token comes before the head of the reply.
absl::Status Call::Ask(std::vector<engine::Request> requests) {
  const MutexLock lock(mu_);
  try {
    absl::Status asked = AskLocked(std::move(requests));
    if (!asked.ok()) failed_ = true;
    return asked;
  } catch (const std::exception& error) {
    failed_ = true;
    return absl::InternalError(WhatOf(error));
  }
}

absl::Status Call::AskLocked(std::vector<engine::Request> requests) {
  ids_.reserve(requests.size());
  for (const engine::Request& request : requests) prompts_.push_back(request.prompt.tokens);
  for (const std::vector<int32_t>& prompt : prompts_) {
    usage_.prompt_tokens += static_cast<int64_t>(prompt.size());
    for (int64_t sample = 0; sample < samples_; ++sample) {
      Choice& choice = choices_.emplace_back();
      choice.next.index = static_cast<int64_t>(choices_.size()) - 1;
      choice.next.prompt = choice.prompt = &prompt;
    }
  }
  for (Choice& choice : choices_) choice.reply = ReadAnswer(choice);
  metrics_.CountPrompt(usage_.prompt_tokens);
  for (size_t p = 0; p < requests.size(); ++p) {
    const size_t first = p * static_cast<size_t>(samples_);
    requests[p].on_token = [self = shared_from_this(), first](int64_t sample, const engine::NewToken& token) {
      self->OnToken(first + static_cast<size_t>(sample), token);
    };
    const auto id = replica_->Add(std::move(requests[p]), [self = shared_from_this(), first](engine::Answer answer) {
      self->OnEnd(first, std::move(answer));
    });
    if (!id.ok()) return id.status();
    ids_.push_back(*id);
    left_ += static_cast<size_t>(samples_);
  }
  if (streams_) {
    exchange_->Begin({.content_type = "text/event-stream; charset=utf-8",
                      .headers = {{"Cache-Control", "no-cache"}, {"X-Request-Id", replies_->id()}}});
    for (const Choice& choice : choices_) exchange_->Write(replies_->Opening(choice.next.index));
  }
  if (aborted_) {  // before there was anything to abort
    for (const engine::RequestId id : ids_) replica_->Abort(id);
  }
  return absl::OkStatus();
}

std::unique_ptr<ReplyStream> Call::ReadAnswer(const Choice& choice) const {
  ReplyReading reading = reading_;
  reading.options.id_seed = absl::StrCat(replies_->id(), "/", choice.next.index);
  if (reading.options.reads_reasoning) reading.options.reasoning_open = EndsInReasoning(model_, *choice.prompt);
  return std::make_unique<ReplyStream>(*model_.tokenizer, stops_, stop_texts_, std::move(reading));
}

void Call::Abort() {
  std::vector<engine::RequestId> ids;
  {
    const MutexLock lock(mu_);
    aborted_ = true;
    ids = ids_;
  }
  for (const engine::RequestId id : ids) replica_->Abort(id);
}

void Call::OnToken(size_t index, const engine::NewToken& token) {
  const absl::Time now = Clock::Real().Now();
  const MutexLock lock(mu_);
  Choice& choice = choices_[index];
  if (choice.tokens == 0) {
    metrics_.ObserveFirstToken(now - begun_);
  } else {
    metrics_.ObserveNextToken(now - choice.last_token);
  }
  choice.last_token = now;
  ++choice.tokens;
  if (failed_) return;
  try {
    AddToken(choice, token);
  } catch (const std::exception& error) {  // which the engine would take for its own, and lose all requests
    Fail(absl::InternalError(WhatOf(error)));
  }
}

void Call::AddToken(Choice& choice, const engine::NewToken& token) {
  choice.next.tokens.push_back(token);
  const absl::Status read = choice.reply->Push(token.token);
  if (!read.ok()) return Fail(read);
  if (streams_ && exchange_->unread_bytes() <= kEnoughUnread) SendEvent(choice);
}

void Call::SendEvent(Choice& choice) {
  if (choice.next.deltas.empty()) choice.next.deltas = choice.reply->TakeDeltas();
  if (choice.next.deltas.empty() && !shows_tokens_ && !choice.next.finish) return;
  exchange_->Write(replies_->Event(choice.next));
  Piece next{
      .index = choice.next.index,
      .text_offset = choice.next.text_offset + (shows_tokens_ ? CharactersOf(choice.next.tokens, *model_.texts) : 0)};
  choice.next = std::move(next);
}

void Call::OnEnd(size_t first, engine::Answer answer) {
  bool done = false;
  {
    const MutexLock lock(mu_);
    done = --left_ == 0;
    try {
      if (!answer.status.ok()) Fail(answer.status);
      if (answer.sample >= 0) EndChoice(choices_[first + static_cast<size_t>(answer.sample)], answer);
    } catch (const std::exception& error) {
      Fail(absl::InternalError(WhatOf(error)));
    }
  }
  if (!done) return;
  on_done_();  // before the client knows, who may ask for more at once
  writers_.Post(this, [self = shared_from_this()] { self->Finish(); });
}

void Call::EndChoice(Choice& choice, engine::Answer& answer) {
  const engine::Completion& completion = answer.completion;
  choice.ended = true;
  choice.finish = completion.finish_reason;
  usage_.completion_tokens += choice.tokens;
  metrics_.CountAnswer(answer.status.ok() ? FinishNameOf(choice.finish) : "error", choice.tokens);
  if (failed_) return;
  const bool by_itself =
      choice.finish == engine::FinishReason::kEndToken || choice.finish == engine::FinishReason::kStop;
  if (const absl::Status read = choice.reply->Finish(completion.text_bytes, by_itself); !read.ok()) return Fail(read);
  choice.next.finish = choice.finish;
  choice.next.version = answer.version;
  choice.next.prompt_log_probs = completion.prompt_log_probs;
  choice.next.calls_tools = !choice.reply->reply().calls.empty();
  choice.next.deltas = streams_ ? choice.reply->TakeDeltas() : text::DeltasOf(choice.reply->reply());
  if (streams_ && exchange_->unread_bytes() <= kEnoughUnread) SendEvent(choice);
}

void Call::Fail(const absl::Status& status) {
  if (std::exchange(failed_, true)) return;
  for (const engine::RequestId id : ids_) replica_->Abort(id);
  const Problem problem = ProblemOf(status);
  exchange_->Note(Note());
  if (!streams_) return exchange_->Send(ResponseOf(problem));
  exchange_->End(EventOf(BodyOf(problem)));
}

std::optional<Call::Rest> Call::TakeRest() {
  const MutexLock lock(mu_);
  if (failed_) return std::nullopt;
  exchange_->Note(Note());
  Rest rest{.usage = usage_};
  for (Choice& choice : choices_) {
    if (!streams_ || choice.next.finish) rest.pieces.push_back(std::move(choice.next));
  }
  return rest;
}

void Call::Write(const Rest& rest) const {
  if (!streams_) {
    return exchange_->Send(
        {.body = replies_->Whole(rest.pieces, rest.usage), .headers = {{"X-Request-Id", replies_->id()}}});
  }
  std::string events;
  for (const Piece& piece : rest.pieces) events += replies_->Event(piece);
  exchange_->End(events + replies_->Closing(rest.usage));
}

// Writes without the lock, for which the thread that serves all connections waits to tell that the client is gone.
void Call::Finish() {
  try {
    if (const std::optional<Rest> rest = TakeRest()) Write(*rest);
  } catch (const std::exception& error) {
    const MutexLock lock(mu_);
    Fail(absl::InternalError(WhatOf(error)));
  }
}

std::string Call::Note() const {
  nlohmann::ordered_json note = {
      {"request_id", replies_->id()}, {"prompt_tokens", usage_.prompt_tokens}, {"completion_tokens", 0}};
  int64_t tokens = 0;
  for (const Choice& choice : choices_) {
    tokens += choice.tokens;
    note["finish_reasons"].push_back(choice.ended ? FinishNameOf(choice.finish) : failed_ ? "error" : "abort");
  }
  note["completion_tokens"] = tokens;
  return JsonText(note);
}

}  // namespace tdock::inference
