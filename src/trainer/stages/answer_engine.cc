#include "trainer/stages/answer_engine.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace tdock::trainer {
namespace {

class LocalEngine final : public AnswerEngine {
 public:
  LocalEngine(const model::Decoder& decoder, const engine::EngineOptions& options)
      : decoder_(decoder), engine_(decoder, options) {}

  absl::Status Serve(std::shared_ptr<const model::Decoder> decoder, int64_t version, bool /*in_flight*/,
                     const std::function<absl::Status()>& /*check_stop*/) override {
    if (decoder.get() == &decoder_ && !serves_other_) {
      engine_.Update([] {}, version);
    } else {
      serves_other_ = true;
      engine_.Serve(std::move(decoder), version);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<engine::RequestId> Add(engine::Request request) override { return engine_.Add(std::move(request)); }
  bool HasWork() const override { return engine_.HasWork(); }
  absl::StatusOr<std::vector<engine::Answer>> Step() override { return engine_.Step(); }
  absl::Status Abort(engine::RequestId request) override { return engine_.Abort(request); }
  // Which knows from the beginning how large its cache must be, and gives that back at the end.
  absl::Status AnswerAll(std::vector<engine::Request> requests, const AfterStep& after_step) override {
    return engine_.AnswerAll(std::move(requests), after_step);
  }

  int64_t open() const override {
    const engine::EngineStats stats = engine_.stats();
    return stats.running + stats.waiting;
  }
  absl::Duration computing() const override { return engine_.stats().computing; }

 private:
  const model::Decoder& decoder_;
  engine::Engine engine_;
  bool serves_other_ = false;
};

using MakeEngine = std::function<absl::StatusOr<std::unique_ptr<AnswerEngine>>()>;

class LateEngine final : public AnswerEngine {
 public:
  explicit LateEngine(MakeEngine make) : make_(std::move(make)) {}

  absl::Status Serve(std::shared_ptr<const model::Decoder> decoder, int64_t version, bool in_flight,
                     const std::function<absl::Status()>& check_stop) override {
    if (engine_ == nullptr) {
      TDOCK_ASSIGN_OR_RETURN(engine_, make_());
    }
    return engine_->Serve(std::move(decoder), version, in_flight, check_stop);
  }

  absl::StatusOr<engine::RequestId> Add(engine::Request request) override {
    TDOCK_RETURN_IF_ERROR(CheckMade());
    return engine_->Add(std::move(request));
  }
  bool HasWork() const override { return engine_ != nullptr && engine_->HasWork(); }
  absl::StatusOr<std::vector<engine::Answer>> Step() override {
    TDOCK_RETURN_IF_ERROR(CheckMade());
    return engine_->Step();
  }
  absl::Status Abort(engine::RequestId request) override {
    TDOCK_RETURN_IF_ERROR(CheckMade());
    return engine_->Abort(request);
  }
  absl::Status AnswerAll(std::vector<engine::Request> requests, const AfterStep& after_step) override {
    TDOCK_RETURN_IF_ERROR(CheckMade());
    return engine_->AnswerAll(std::move(requests), after_step);
  }
  int64_t open() const override { return engine_ == nullptr ? 0 : engine_->open(); }
  absl::Duration computing() const override { return engine_ == nullptr ? absl::ZeroDuration() : engine_->computing(); }
  void Report(StepMetrics& metrics) override {
    if (engine_ != nullptr) engine_->Report(metrics);
  }

 private:
  absl::Status CheckMade() const {
    if (engine_ != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError("nothing answers before weights are served");
  }

  const MakeEngine make_;
  std::unique_ptr<AnswerEngine> engine_;
};

}  // namespace

absl::Status AnswerEngine::AnswerAll(std::vector<engine::Request> requests, const AfterStep& after_step) {
  std::vector<engine::RequestId> ids;
  std::map<engine::RequestId, size_t> numbers;
  absl::Status status;
  for (size_t i = 0; i < requests.size() && status.ok(); ++i) {
    const absl::StatusOr<engine::RequestId> id = Add(std::move(requests[i]));
    status = Annotate(id.status(), absl::StrCat("prompt ", i));
    if (!id.ok()) break;
    ids.push_back(*id);
    numbers[*id] = i;
  }
  while (status.ok() && HasWork()) {
    absl::StatusOr<std::vector<engine::Answer>> ended = Step();
    status = ended.status();
    if (!ended.ok()) break;
    for (engine::Answer& answer : *ended) answer.request = numbers.at(answer.request);
    status = after_step(std::span(*ended));
  }
  if (!status.ok()) GiveUp(ids);
  return status;
}

void AnswerEngine::GiveUp(std::span<const engine::RequestId> requests) {
  for (const engine::RequestId id : requests) Abort(id).IgnoreError();  // it may have ended
  while (HasWork() && Step().ok()) {
  }
}

std::unique_ptr<AnswerEngine> MakeLocalEngine(const model::Decoder& decoder, const engine::EngineOptions& options) {
  return std::make_unique<LocalEngine>(decoder, options);
}

std::unique_ptr<AnswerEngine> MakeLateEngine(MakeEngine make) { return std::make_unique<LateEngine>(std::move(make)); }

}  // namespace tdock::trainer
