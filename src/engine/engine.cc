#include "engine/engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "engine/engine_core.h"
#include "engine/open_request.h"
#include "model/decoder/weights.h"

namespace tdock::engine {

using model::Decoder;

namespace {

// Positions behind the prompt.
int64_t LeastRoom(const Request& request) { return std::min<int64_t>(request.sampling.max_new_tokens, 1); }

}  // namespace

// step_mu_ is taken before mu_.
class Engine::Impl {
 public:
  Impl(const Decoder& decoder, EngineOptions options)
      : options_(std::move(options)), core_(options_, decoder), decoder_(&decoder), checked_(&decoder) {}

  absl::StatusOr<std::vector<Completion>> Generate(std::span<const Prompt> prompts, const SamplingParams& params)
      TDOCK_EXCLUDES(step_mu_, mu_);
  absl::Status AnswerAll(std::vector<Request> requests, const AfterStep& after_step) TDOCK_EXCLUDES(step_mu_, mu_);
  absl::StatusOr<RequestId> Add(Request request) TDOCK_EXCLUDES(mu_);
  absl::Status Abort(RequestId id) TDOCK_EXCLUDES(mu_);
  bool IsOpen(RequestId id) const TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return open_.contains(id);
  }
  bool HasWork() const TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return !open_.empty();
  }
  std::vector<Answer> Step() TDOCK_EXCLUDES(step_mu_, mu_);
  std::shared_ptr<const Decoder> Serve(std::shared_ptr<const Decoder> decoder, int64_t version, InProgress in_progress)
      TDOCK_EXCLUDES(step_mu_, mu_);
  absl::Status ServeAdapters(const model::NamedTensors& adapters, int64_t version) TDOCK_EXCLUDES(step_mu_, mu_);
  void Update(const std::function<void()>& write, int64_t version) TDOCK_EXCLUDES(step_mu_, mu_);
  ServedWeights weights() TDOCK_EXCLUDES(step_mu_);
  EngineStats stats() const TDOCK_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return stats_;
  }

 private:
  absl::StatusOr<std::unique_ptr<OpenRequest>> Open(Request request, const Decoder& decoder) TDOCK_REQUIRES(mu_);
  // The choosing of the request before, where it is the same.
  std::shared_ptr<const Choosing> ChoosingFor(const SamplingParams& params, const Decoder& decoder) TDOCK_REQUIRES(mu_);
  // For AnswerAll(), during which the core works on nothing else. Empties it, and checks all requests.
  absl::StatusOr<std::vector<std::unique_ptr<OpenRequest>>> OpenAll(std::vector<Request> requests)
      TDOCK_REQUIRES(step_mu_) TDOCK_EXCLUDES(mu_);
  absl::Status CheckParameters(const SamplingParams& params) TDOCK_EXCLUDES(mu_);
  // What was added and aborted since the last step.
  void TakeIn(std::vector<Answer>& ended) TDOCK_REQUIRES(step_mu_) TDOCK_EXCLUDES(mu_);
  // Whether weights change by Serve() only.
  bool weights_stay() const TDOCK_REQUIRES(step_mu_) { return owned_ != nullptr; }
  // After an exception in a step.
  void LoseAll() TDOCK_REQUIRES(step_mu_) TDOCK_EXCLUDES(mu_);
  std::shared_ptr<const Decoder> Serve(std::shared_ptr<const Decoder> decoder, const Decoder* served, int64_t version,
                                       InProgress in_progress = InProgress::kReadAgain) TDOCK_REQUIRES(step_mu_);

  const EngineOptions options_;

  Mutex step_mu_;  // held through a step, and by whoever changes weights
  EngineCore core_ TDOCK_GUARDED_BY(step_mu_);
  const Decoder* decoder_ TDOCK_GUARDED_BY(step_mu_);
  std::shared_ptr<const Decoder> owned_ TDOCK_GUARDED_BY(step_mu_);  // decoder_, unless it is somebody else's
  ServedWeights weights_ TDOCK_GUARDED_BY(step_mu_);
  bool hashed_ TDOCK_GUARDED_BY(step_mu_) = false;

  mutable Mutex mu_;
  const Decoder* checked_ TDOCK_GUARDED_BY(mu_);  // decoder_, for what never changes
  RequestId next_ TDOCK_GUARDED_BY(mu_) = 0;
  absl::flat_hash_set<RequestId> open_ TDOCK_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<OpenRequest>> added_ TDOCK_GUARDED_BY(mu_);
  std::vector<RequestId> aborted_ TDOCK_GUARDED_BY(mu_);
  std::shared_ptr<const Choosing> last_choosing_ TDOCK_GUARDED_BY(mu_);
  EngineStats stats_ TDOCK_GUARDED_BY(mu_);
};

std::shared_ptr<const Choosing> Engine::Impl::ChoosingFor(const SamplingParams& params, const Decoder& decoder) {
  SamplingParams seedless = params;
  seedless.seed = 0;
  if (last_choosing_ == nullptr || last_choosing_->params != seedless) {
    last_choosing_ = std::make_shared<const Choosing>(seedless, options_.end_tokens, options_.tokenizer, decoder);
  }
  return last_choosing_;
}

absl::StatusOr<std::unique_ptr<OpenRequest>> Engine::Impl::Open(Request request, const Decoder& decoder) {
  TDOCK_RETURN_IF_ERROR(CheckRequest(request, options_, decoder.used_tokens()));
  auto open = std::make_unique<OpenRequest>();
  open->id = next_++;
  open->choosing = ChoosingFor(request.sampling, decoder);
  open->rope_length = LongestOf(request, decoder.config());
  open->request = std::move(request);
  // `choosing` has what may be large, for all requests that follow one another with the same.
  SamplingParams& own = open->request.sampling;
  own.logit_bias = {};
  own.allowed_tokens = {};
  own.stop_tokens = {};
  own.stop = {};
  return open;
}

absl::StatusOr<RequestId> Engine::Impl::Add(Request request) {
  const MutexLock lock(mu_);
  const Decoder& decoder = *checked_;
  TDOCK_RETURN_IF_ERROR(CheckOptions(options_, decoder));
  const absl::Status prompt = CheckPrompt(request.prompt, decoder.config(), LeastRoom(request));
  if (!prompt.ok()) return absl::InvalidArgumentError(absl::StrCat("the prompt ", prompt.message()));
  const absl::Status fits = CheckCacheBytes(options_, decoder, request);
  if (!fits.ok()) return absl::InvalidArgumentError(absl::StrCat("the prompt ", fits.message()));
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<OpenRequest> open, Open(std::move(request), decoder));
  const RequestId id = open->id;
  open_.insert(id);
  added_.push_back(std::move(open));
  return id;
}

absl::Status Engine::Impl::Abort(RequestId id) {
  const MutexLock lock(mu_);
  if (!open_.contains(id)) {
    return absl::NotFoundError(absl::StrCat("request ", id, " is not open: it has ended, or was never added"));
  }
  aborted_.push_back(id);
  return absl::OkStatus();
}

void Engine::Impl::TakeIn(std::vector<Answer>& ended) {
  std::vector<std::unique_ptr<OpenRequest>> added;
  std::vector<RequestId> aborted;
  {
    const MutexLock lock(mu_);
    added.swap(added_);
    aborted.swap(aborted_);
  }
  for (std::unique_ptr<OpenRequest>& open : added) core_.Add(std::move(open), ended);
  for (const RequestId id : aborted) core_.Abort(id, ended);
}

void Engine::Impl::LoseAll() {
  core_.Clear(weights_stay());
  const MutexLock lock(mu_);
  open_.clear();
  for (const auto& open : added_) open_.insert(open->id);
  stats_ = core_.stats();
}

std::vector<Answer> Engine::Impl::Step() {
  const MutexLock step(step_mu_);
  std::vector<Answer> ended;
  std::vector<News> news;
  try {
    TakeIn(ended);
    core_.Step(*decoder_, weights_.version, ended, news);
    {
      const MutexLock lock(mu_);
      stats_ = core_.stats();
      for (Answer& answer : ended) {
        answer.version = weights_.version;
        if (!core_.IsOpen(answer.request)) open_.erase(answer.request);
      }
    }
    for (const News& one : news) one();
  } catch (...) {
    LoseAll();
    throw;
  }
  return ended;
}

absl::StatusOr<std::vector<std::unique_ptr<OpenRequest>>> Engine::Impl::OpenAll(std::vector<Request> requests) {
  TDOCK_RETURN_IF_ERROR(CheckOptions(options_, *decoder_));
  const MutexLock lock(mu_);
  last_choosing_ = nullptr;  // the decoder may have changed
  if (!open_.empty()) {
    return absl::FailedPreconditionError(
        "requests are open, and this call has the engine for itself; abort them, or step until they have ended");
  }
  std::vector<std::unique_ptr<OpenRequest>> opened;
  int64_t rows = 0, longest = 0;
  for (size_t p = 0; p < requests.size(); ++p) {
    Request& request = requests[p];
    if (!request.prompt.identity) request.prompt.identity = p;
    absl::Status fits = CheckPrompt(request.prompt, decoder_->config(), LeastRoom(request));
    if (fits.ok()) fits = CheckCacheBytes(options_, *decoder_, request);
    if (!fits.ok()) return absl::InvalidArgumentError(absl::StrCat("prompt ", p, " ", fits.message()));
    rows += request.prompt.samples;
    longest = std::max(longest, LongestOf(request, decoder_->config()));
    TDOCK_ASSIGN_OR_RETURN(opened.emplace_back(), Open(std::move(request), *decoder_));
  }
  for (const std::unique_ptr<OpenRequest>& open : opened) open->rope_length = longest;
  core_.Clear(weights_stay());  // what it had may be of other weights
  core_.Expect(rows, longest);
  return opened;
}

absl::Status Engine::Impl::AnswerAll(std::vector<Request> requests, const AfterStep& after_step) {
  const MutexLock step(step_mu_);
  std::vector<Answer> ended;
  std::vector<News> news;
  TDOCK_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<OpenRequest>> opened, OpenAll(std::move(requests)));
  const RequestId first = opened.empty() ? 0 : opened.front()->id;
  absl::Status status;
  try {
    for (std::unique_ptr<OpenRequest>& open : opened) core_.Add(std::move(open), ended);
    while (status.ok() && (core_.HasRequests() || !ended.empty())) {
      core_.Step(*decoder_, weights_.version, ended, news);
      for (const News& one : news) one();
      for (Answer& answer : ended) answer.request -= first;
      status = after_step(std::span(ended));
      ended.clear();
      news.clear();
    }
  } catch (...) {
    LoseAll();
    throw;
  }
  core_.Clear(weights_stay());
  const MutexLock lock(mu_);
  stats_ = core_.stats();
  return status;
}

absl::StatusOr<std::vector<Completion>> Engine::Impl::Generate(std::span<const Prompt> prompts,
                                                               const SamplingParams& params) {
  std::vector<Request> requests;
  std::vector<size_t> first_completions;
  size_t count = 0;
  for (const Prompt& prompt : prompts) {
    requests.push_back({.prompt = prompt, .sampling = params});
    first_completions.push_back(count);
    count += static_cast<size_t>(std::max<int64_t>(prompt.samples, 0));
  }
  if (requests.empty()) TDOCK_RETURN_IF_ERROR(CheckParameters(params));
  std::vector<Completion> completions(count);
  TDOCK_RETURN_IF_ERROR(AnswerAll(std::move(requests), [&](std::span<Answer> ended) {
    // Of several failures in a step, that of the first prompt.
    const Answer* failed = nullptr;
    for (Answer& answer : ended) {
      if (!answer.status.ok()) {
        if (failed == nullptr || answer.request < failed->request) failed = &answer;
        continue;
      }
      completions[first_completions[answer.request] + static_cast<size_t>(answer.sample)] =
          std::move(answer.completion);
    }
    return failed == nullptr ? absl::OkStatus() : Annotate(failed->status, absl::StrCat("prompt ", failed->request));
  }));
  return completions;
}

absl::Status Engine::Impl::CheckParameters(const SamplingParams& params) {
  const MutexLock lock(mu_);
  return CheckRequest({.prompt = {}, .sampling = params}, options_, checked_->used_tokens());
}

std::shared_ptr<const Decoder> Engine::Impl::Serve(std::shared_ptr<const Decoder> decoder, const Decoder* served,
                                                   int64_t version, InProgress in_progress) {
  {
    const MutexLock lock(mu_);
    checked_ = served;
    last_choosing_ = nullptr;
  }
  decoder_ = served;
  owned_.swap(decoder);
  weights_.version = version;
  hashed_ = false;
  core_.Forget(in_progress);
  const MutexLock lock(mu_);
  stats_ = core_.stats();
  return decoder;
}

std::shared_ptr<const Decoder> Engine::Impl::Serve(std::shared_ptr<const Decoder> decoder, int64_t version,
                                                   InProgress in_progress) {
  const MutexLock step(step_mu_);
  const Decoder* const served = decoder.get();
  return Serve(std::move(decoder), served, version, in_progress);
}

absl::Status Engine::Impl::ServeAdapters(const model::NamedTensors& adapters, int64_t version) {
  const MutexLock step(step_mu_);
  const at::NoGradGuard no_grad;
  auto next = std::make_shared<Decoder>(decoder_->Snapshot());
  const model::NamedTensors present = next->NamedAdapters();
  absl::flat_hash_set<std::string> given;
  for (const auto& [name, value] : adapters) {
    const auto found =
        std::find_if(present.begin(), present.end(), [&name = name](const auto& one) { return one.first == name; });
    if (found == present.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the model that is served has no adapter '", name, "'"));
    }
    if (found->second.sizes() != value.sizes()) {
      return absl::InvalidArgumentError(absl::StrCat("adapter '", name, "' has ", value.numel(),
                                                     " numbers, and the one that is served ", found->second.numel()));
    }
    at::Tensor(found->second).copy_(value);
    given.insert(name);
  }
  if (given.size() != present.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.size(), " adapters for a model with ", present.size(), "; it needs a value for each"));
  }
  const Decoder* const served = next.get();
  Serve(std::move(next), served, version);
  return absl::OkStatus();
}

void Engine::Impl::Update(const std::function<void()>& write, int64_t version) {
  const MutexLock step(step_mu_);
  try {
    write();
  } catch (...) {
    Serve(owned_, decoder_, version);  // some of them may have changed
    throw;
  }
  Serve(owned_, decoder_, version);
}

ServedWeights Engine::Impl::weights() {
  const MutexLock step(step_mu_);
  if (!hashed_) {
    model::NamedTensors all = decoder_->NamedWeights();
    const model::NamedTensors adapters = decoder_->NamedAdapters();
    all.insert(all.end(), adapters.begin(), adapters.end());
    weights_.hash = model::ChecksumOf(all);
    hashed_ = true;
  }
  return weights_;
}

Engine::Engine(const Decoder& decoder, EngineOptions options)
    : impl_(std::make_unique<Impl>(decoder, std::move(options))) {}
Engine::~Engine() = default;

absl::StatusOr<std::vector<Completion>> Engine::Generate(std::span<const Prompt> prompts,
                                                         const SamplingParams& params) {
  return impl_->Generate(prompts, params);
}
absl::Status Engine::AnswerAll(std::vector<Request> requests, const AfterStep& after_step) {
  return impl_->AnswerAll(std::move(requests), after_step);
}
absl::StatusOr<RequestId> Engine::Add(Request request) { return impl_->Add(std::move(request)); }
absl::Status Engine::Abort(RequestId request) { return impl_->Abort(request); }
bool Engine::IsOpen(RequestId request) const { return impl_->IsOpen(request); }
bool Engine::HasWork() const { return impl_->HasWork(); }
std::vector<Answer> Engine::Step() { return impl_->Step(); }
std::shared_ptr<const Decoder> Engine::Serve(std::shared_ptr<const Decoder> decoder, int64_t version,
                                             InProgress in_progress) {
  return impl_->Serve(std::move(decoder), version, in_progress);
}
absl::Status Engine::ServeAdapters(const model::NamedTensors& adapters, int64_t version) {
  return impl_->ServeAdapters(adapters, version);
}
void Engine::Update(const std::function<void()>& write, int64_t version) { impl_->Update(write, version); }
ServedWeights Engine::weights() { return impl_->weights(); }
EngineStats Engine::stats() const { return impl_->stats(); }

}  // namespace tdock::engine
