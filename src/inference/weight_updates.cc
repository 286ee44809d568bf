#include "inference/weight_updates.h"

#include <ATen/Parallel.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <exception>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "inference/call.h"
#include "inference/failure.h"
#include "inference/replies.h"
#include "inference/requests.h"

namespace tdock::inference {
namespace {

using Json = nlohmann::ordered_json;

// Of a thread beside those that answer, which have three quarters of a core that both want.
constexpr int kNiceness = 5;

std::string RandomName() {
  std::random_device device;
  return absl::StrCat(absl::Hex((uint64_t{device()} << 32) | device(), absl::kZeroPad16));
}

http::Response Conflict(std::string why) {
  return ResponseOf({.status = 409, .message = std::move(why), .code = "conflict"});
}

// `patience` at the most.
http::Response TryAgain(http::Response response, absl::Duration patience) {
  const int64_t seconds = std::max<int64_t>(absl::ToInt64Seconds(absl::Ceil(patience, absl::Seconds(1))), 1);
  response.headers.emplace_back("Retry-After", absl::StrCat(seconds));
  return response;
}

http::Response BeingLoaded() {
  return TryAgain(Conflict("weights are being changed, or read again for /flush_cache"), absl::Seconds(1));
}

http::Response StillReading() {
  return TryAgain(
      ResponseOf({.status = 503, .message = "a piece of the upload is still being read", .type = "server_error"}),
      absl::Seconds(1));
}

// What is wrong, with the bytes that are there, from which the client goes on.
http::Response NotThere(std::string why, uint64_t received) {
  http::Response response = Conflict(std::move(why));
  Json body = ReadOrderedJson(response.body);
  body["received"] = received;
  response.body = JsonText(body);
  return response;
}

// Runs `work` on a thread of a lower priority, and waits for it.
absl::Status RunBehindOthers(absl::FunctionRef<absl::Status()> work) {
  absl::Status status;
  try {
    std::thread([&] {
      ::setpriority(PRIO_PROCESS, 0, ::getpriority(PRIO_PROCESS, 0) + kNiceness);  // of this thread, on Linux
      at::init_num_threads();
      try {
        status = work();
      } catch (const std::exception& error) {
        status = absl::InternalError(WhatOf(error));
      }
    }).join();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("no thread for it: ", error.what()));
  }
  return status;
}

}  // namespace

WeightUpdates::WeightUpdates(const ServedModel& model, const Replicas& replicas, Metrics& metrics, AskLimits limits,
                             uint64_t most_piece_bytes, Clock& clock)
    : model_(model),
      replicas_(replicas),
      metrics_(metrics),
      limits_(limits),
      most_piece_bytes_(most_piece_bytes),
      clock_(clock),
      version_(model.engines.front()->weights().version) {}

http::Response WeightUpdates::Update(const http::Request& request) {
  if (!request.query.empty()) {
    const auto read = ReadUpload(request.query);
    if (const auto* problem = std::get_if<Problem>(&read)) return ResponseOf(*problem);
    return Continue(std::get<UploadAsk>(read), request.body);
  }
  const auto read = ReadWeights(request.body, limits_);
  if (const auto* problem = std::get_if<Problem>(&read)) return ResponseOf(*problem);
  const WeightsAsk& ask = std::get<WeightsAsk>(read);
  return ask.folder.empty() ? Begin(ask) : UpdateFromFolder(ask);
}

absl::Status WeightUpdates::health() const {
  if (!is_half_done_) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the change to the weights of version ", version_.load(),
                   " failed half done, and replicas may serve different ones; change them again"));
}

http::Response WeightUpdates::FlushCache() {
  if (updating_.exchange(true)) return BeingLoaded();
  const absl::Cleanup done = [&] { updating_ = false; };
  for (const auto& replica : replicas_) {
    replica->BetweenSteps([&] { replica->engine().Update([] {}, version_); });
  }
  return {.body = JsonText(Json{{"success", true}})};
}

// So that tokens of different weights never have the same version.
absl::Status WeightUpdates::CheckVersion(int64_t version) const {
  const int64_t last = version_;
  if (version > last && version <= kMostVersion) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'weight_version' is ", version, ", and must be above ", last,
                                                 ", which is served, and at most ", kMostVersion));
}

std::string WeightUpdates::Success(absl::string_view what, int64_t version) const {
  return JsonText(Json{{"success", true},
                       {"message", absl::StrCat(what, " are served")},
                       {"weight_version", absl::StrCat(version)},
                       {"instance", model_.instance}});
}

http::Response WeightUpdates::UpdateFromFolder(const WeightsAsk& ask) {
  if (updating_.exchange(true)) return BeingLoaded();
  const absl::Cleanup done = [&] { updating_ = false; };
  const int64_t version = ask.version.value_or(version_ + 1);
  absl::Status served = CheckVersion(version);
  if (served.ok()) served = Serve([&] { return model_.load(ask.folder); }, version, ask.flush_cache);
  if (!served.ok()) return ResponseOf(ProblemOf(served));
  const MutexLock lock(mu_);
  if (served_) spare_ = std::exchange(served_, std::nullopt);
  return {.body = Success(absl::StrCat("the weights of ", ask.folder), version)};
}

absl::Status WeightUpdates::Serve(Load load, int64_t version, bool flush_cache) {
  const absl::Time begun = Clock::Real().Now();
  TDOCK_RETURN_IF_ERROR(RunBehindOthers([&]() -> absl::Status {
    TDOCK_ASSIGN_OR_RETURN(model::Decoder decoder, load());
    if (decoder.batch_invariant()) decoder.PackWeights(model_.int8_weights);
    const auto next = std::make_shared<const model::Decoder>(std::move(decoder));
    const auto in_progress = flush_cache ? engine::InProgress::kReadAgain : engine::InProgress::kGoOn;
    std::vector<std::shared_ptr<const model::Decoder>> before(replicas_.size());
    {
      // Also if one of them fails: the others have tokens of this version by then, and no other weights may have it.
      const absl::Cleanup counted = [&] { version_ = version; };
      absl::Cleanup failed = [&] { is_half_done_ = true; };
      for (size_t i = 0; i < replicas_.size(); ++i) {
        replicas_[i]->BetweenSteps([&] { before[i] = replicas_[i]->engine().Serve(next, version, in_progress); });
      }
      std::move(failed).Cancel();
      is_half_done_ = false;
    }
    before.clear();    // on this thread, which nobody waits for
    ::malloc_trim(0);  // else the system would not get all of it
    return absl::OkStatus();
  }));
  metrics_.CountWeightUpdate(Clock::Real().Now() - begun);
  return absl::OkStatus();
}

http::Response WeightUpdates::Begin(const WeightsAsk& ask) {
  const MutexLock lock(mu_);
  if (updating_) return BeingLoaded();
  const int64_t version = ask.version.value_or(version_ + 1);
  if (const absl::Status fits = CheckVersion(version); !fits.ok()) {  // somebody else may have been quicker
    return Conflict(std::string(fits.message()));
  }
  const absl::Time now = clock_.Now();
  if (upload_ && (upload_->reads_piece || now - upload_->touched < kForgotten)) {
    return TryAgain(
        Conflict(absl::StrCat("another upload is in progress; it gives way when nothing of it has come for ",
                              absl::FormatDuration(kForgotten))),
        kForgotten - (now - upload_->touched));
  }
  if (upload_) spare_ = upload_->weights->decoder();
  upload_.reset();
  if (!spare_) {
    absl::StatusOr<model::Decoder> made = model_.blank();
    if (!made.ok()) return ResponseOf(ProblemOf(made.status()));
    spare_ = *std::move(made);
  }
  if (const auto problem = WeightUpload::Check(ask.tensors, *spare_)) return ResponseOf(*problem);
  upload_ = Upload{.id = RandomName(),
                   .version = version,
                   .flush_cache = ask.flush_cache,
                   .touched = now,
                   .weights = std::make_unique<WeightUpload>(ask.tensors, *std::exchange(spare_, std::nullopt))};
  return {.body = JsonText(Json{{"upload", upload_->id},
                                {"weight_version", absl::StrCat(version)},
                                {"most_piece_bytes", most_piece_bytes_}})};
}

http::Response WeightUpdates::Continue(const UploadAsk& ask, absl::string_view bytes) {
  if (ask.offset) return AddPiece(ask, bytes);
  auto whole = TakeWhole(ask);
  if (auto* const response = std::get_if<http::Response>(&whole)) return *std::move(response);
  return End(std::get<Upload>(std::move(whole)));
}

http::Response WeightUpdates::Absent(const std::string& upload) const {
  if (upload == ending_) return BeingLoaded();
  return ResponseOf({.status = 404,
                     .message = "there is no such upload: it has given way to another one, failed, or the server has "
                                "been started again; begin a new one",
                     .param = "upload",
                     .code = "not_found"});
}

// The numbers of a piece are converted without the lock: others are told at once that they have to wait.
http::Response WeightUpdates::AddPiece(const UploadAsk& ask, absl::string_view bytes) {
  WeightUpload* weights = nullptr;
  {
    const MutexLock lock(mu_);
    if (!upload_ || upload_->id != ask.upload) return Absent(ask.upload);
    if (upload_->reads_piece) return StillReading();
    if (bytes.size() > most_piece_bytes_) {
      return ResponseOf(
          {.message = absl::StrCat("the piece has ", bytes.size(), " bytes, and may have ", most_piece_bytes_),
           .code = "invalid_value"});
    }
    upload_->reads_piece = true;  // and so nobody else takes or drops it
    weights = upload_->weights.get();
  }
  bool begun = false;
  absl::Status added;
  const absl::Status ran = RunBehindOthers([&] {
    begun = true;
    added = weights->Add(*ask.offset, bytes);
    return absl::OkStatus();
  });
  const MutexLock lock(mu_);
  upload_->reads_piece = false;
  if (!ran.ok()) {
    if (begun) {  // a part of the piece may be written: going on behind it would shift what follows
      spare_ = weights->decoder();
      upload_.reset();
    }
    return ResponseOf(ProblemOf(ran));
  }
  if (absl::IsInvalidArgument(added)) {  // sent again, the piece would be the same
    spare_ = weights->decoder();
    upload_.reset();
    Problem problem = ProblemOf(added);
    absl::StrAppend(&problem.message, "; nothing is served of the upload, begin a new one");
    return ResponseOf(problem);
  }
  if (absl::IsFailedPrecondition(added)) return NotThere(std::string(added.message()), weights->received_bytes());
  if (!added.ok()) return ResponseOf(ProblemOf(added));
  upload_->touched = clock_.Now();
  return {.body = JsonText(Json{{"received", weights->received_bytes()}})};
}

std::variant<WeightUpdates::Upload, http::Response> WeightUpdates::TakeWhole(const UploadAsk& ask) {
  const MutexLock lock(mu_);
  if (ended_ && ended_->id == ask.upload) return http::Response{.body = ended_->answer};  // asked again
  if (!upload_ || upload_->id != ask.upload) return Absent(ask.upload);
  if (upload_->reads_piece) return StillReading();
  WeightUpload& weights = *upload_->weights;
  if (weights.received_bytes() < weights.total_bytes()) {
    return NotThere(absl::StrCat(weights.received_bytes(), " of ", weights.total_bytes(), " bytes are here"),
                    weights.received_bytes());
  }
  if (weights.checksum() != *ask.checksum) {
    const std::string own = absl::StrCat(absl::Hex(weights.checksum(), absl::kZeroPad16));
    spare_ = weights.decoder();
    upload_.reset();
    return ResponseOf({.message = absl::StrCat("the bytes that came have the checksum ", own,
                                               "; nothing is served of them, send them again"),
                       .param = "checksum",
                       .code = "invalid_value"});
  }
  if (upload_->version <= version_) {
    const int64_t served = version_;
    spare_ = weights.decoder();
    const int64_t version = std::exchange(upload_, std::nullopt)->version;
    return Conflict(absl::StrCat("the upload was to be version ", version, ", and meanwhile ", served, " is served"));
  }
  if (updating_.exchange(true)) return BeingLoaded();
  Upload whole = *std::exchange(upload_, std::nullopt);
  ending_ = whole.id;
  if (ask.flush_cache) whole.flush_cache = *ask.flush_cache;
  return whole;
}

http::Response WeightUpdates::End(Upload upload) {
  const absl::Cleanup done = [&] { updating_ = false; };  // after the lock is gone: until then nothing else begins
  const model::Decoder weights = upload.weights->decoder();
  const absl::Status served = Serve([&] { return weights; }, upload.version, upload.flush_cache);
  const MutexLock lock(mu_);
  ending_.clear();
  if (!served.ok()) {  // such as for want of memory: the end can be asked for again
    upload.touched = clock_.Now();
    upload_ = std::move(upload);
    return ResponseOf(ProblemOf(served));
  }
  spare_ = std::exchange(served_, weights);
  ended_ = Ended{.id = upload.id, .answer = Success("the weights that were sent", upload.version)};
  return {.body = ended_->answer};
}

}  // namespace tdock::inference
