#include "trainer/loop/run_partition.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "trainer/stages/external_stage.h"

namespace tdock::trainer {
namespace {

constexpr char kAnnouncement[] = "dock.json";
constexpr uint64_t kMaxAnnouncementBytes = 1 << 16;

std::string AnnouncementOf(const std::string& address, const std::string& partition) {
  const nlohmann::ordered_json found = {{"address", address}, {"partition", partition}};
  return JsonText(found) + "\n";
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunPartition>> RunPartition::Open(const DockSection& section,
                                                                 const RunContext& context) {
  std::unique_ptr<RunPartition> partition(new RunPartition(section, context));
  if (!section.shared()) {
    if (context.run_dock == nullptr) partition->own_ = context.make_dock(context.clock);
    return partition;
  }
  if (context.open_shared_dock == nullptr) {
    return absl::UnimplementedError("trainer.serve or trainer.dock is set, and this program cannot share its dock");
  }
  auto opened = context.open_shared_dock({.serve = section.serve,
                                          .connect = section.address,
                                          .token_file = section.token_file,
                                          .tls_ca = section.tls_ca,
                                          .tls_cert = section.tls_cert,
                                          .tls_key = section.tls_key,
                                          .clock = &context.clock});
  if (!opened.ok()) return Annotate(opened.status(), section.serve.empty() ? "trainer.dock" : "trainer.serve");
  partition->shared_ = *std::move(opened);
  return partition;
}

absl::Status RunPartition::Create(PartitionOptions options) {
  if (options.name.empty()) options.name = name();
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> existing, dock().ListPartitions());
  if (std::find(existing.begin(), existing.end(), options.name) != existing.end()) {
    TDOCK_ASSIGN_OR_RETURN(const PartitionStatus status, dock().GetStatus(options.name));
    return absl::AlreadyExistsError(absl::StrCat(
        "trainer.partition: the dock at ", shared_->address(), " has a partition '", options.name, "' already, with ",
        status.rows, " rows: of a run that works on it, or of one that was killed. Give this run another name, or, if ",
        "no run uses that one, ", Removal(options.name)));
  }
  if (options.name == name()) last_consumer_ = options.retain_for.front();
  TDOCK_RETURN_IF_ERROR(dock().CreatePartition(options));
  created_.push_back(options.name);
  return absl::OkStatus();
}

absl::Status RunPartition::Import(absl::string_view image) {
  return Annotate(dock().ImportPartition(image), "the rows of the checkpoint");
}

bool RunPartition::IsOfRun(const std::string& run_dir) const {
  const auto text = ReadFileUpTo(context_.env, JoinPath(run_dir, kAnnouncement), kMaxAnnouncementBytes);
  return text.ok() && *text == AnnouncementOf(shared_->address(), name());
}

absl::Status RunPartition::TakeOver(PartitionOptions options, const std::string& run_dir) {
  if (!outlives_run() || !IsOfRun(run_dir)) return Create(std::move(options));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> existing, dock().ListPartitions());
  const bool is_beside = !options.name.empty() && options.name != name();
  const std::string& wanted = is_beside ? options.name : name();
  const bool is_left = std::find(existing.begin(), existing.end(), wanted) != existing.end();
  if (is_left && is_beside) TDOCK_RETURN_IF_ERROR(dock().DropPartition(wanted));
  if (!is_left || is_beside) return Create(std::move(options));
  taken_over_ = true;
  options.name = name();
  last_consumer_ = options.retain_for.front();
  if (const absl::Status same = dock().CreatePartition(options); !same.ok()) {
    return absl::Status(same.code(), absl::StrCat("the partition that this run has left on the dock at ",
                                                  shared_->address(), ": ", same.message(), "; ", Removal(name())));
  }
  created_.push_back(name());
  return absl::OkStatus();
}

absl::Status RunPartition::RollBack(int64_t step, int64_t weights_version) {
  if (!taken_over_) {
    return weights_version == 0 ? absl::OkStatus() : dock().PublishWeights(name(), weights_version);
  }
  const absl::Status rolled_back = dock().Rollback(
      {.partition = name(), .consumer = last_consumer_, .step = step, .weights_version = weights_version});
  if (!rolled_back.ok()) {
    return absl::Status(rolled_back.code(),
                        absl::StrCat("going back to step ", step, " on the dock at ", shared_->address(), ": ",
                                     rolled_back.message(), "; ", Removal(name())));
  }
  // All that is left is of later steps, which are fed again: their rows may have been half done.
  return dock().Clear({.partition = name(), .everything = true}).status();
}

absl::Status RunPartition::Commit(int64_t step) {
  if (!outlives_run()) return absl::OkStatus();
  return Annotate(dock().Commit({.partition = name(), .consumer = last_consumer_, .step = step}),
                  absl::StrCat("committing step ", step, " on the dock at ", shared_->address()));
}

bool RunPartition::IsExternal(const Stage& stage) const {
  const std::vector<std::string>& external = section_.external_stages;
  return std::find(external.begin(), external.end(), stage.consumer().name) != external.end();
}

absl::Status RunPartition::CheckExternal(const std::vector<std::unique_ptr<Stage>>& stages) const {
  std::vector<std::string> all, possible;
  for (const auto& stage : stages) {
    all.push_back(stage->consumer().name);
    if (!stage->uses_policy() && !stage->consumer().writes.empty()) possible.push_back(stage->consumer().name);
  }
  const std::string rather = possible.empty()
                                 ? "other processes can carry out none of them"
                                 : absl::StrCat("other processes can carry out ", absl::StrJoin(possible, ", "));
  for (const std::string& name : section_.external_stages) {
    if (std::find(possible.begin(), possible.end(), name) != possible.end()) continue;
    const bool exists = std::find(all.begin(), all.end(), name) != all.end();
    return absl::InvalidArgumentError(absl::StrCat(
        "trainer.external_stages: ",
        exists ? absl::StrCat("stage '", EscapeForMessage(name), "' needs the weights that this process trains; ")
               : absl::StrCat("there is no stage '", EscapeForMessage(name), "'; there is ", absl::StrJoin(all, ", "),
                              "; "),
        rather));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RunPartition::Await(const Stage& stage, RowId first_row, StageContext& context) {
  return AwaitStage(dock(), name(), stage, context,
                    {.clock = context_.clock,
                     .timeout = absl::Seconds(section_.external_timeout),
                     .first_row = first_row,
                     .check_stop = [this, &context]() -> absl::Status {
                       TDOCK_RETURN_IF_ERROR(context.check_stop());
                       return context_.CheckStop();
                     }});
}

std::string RunPartition::Removal(const std::string& partition) const {
  return absl::StrCat("remove it: tdock dock drop ", partition, " --yes", ReachedWith());
}

std::string RunPartition::ReachedWith() const {
  return absl::StrCat(" --address ", shared_->address(),
                      section_.token_file.empty() ? "" : absl::StrCat(" --token-file ", section_.token_file));
}

absl::Status RunPartition::Announce(const std::string& run_dir, const std::vector<std::unique_ptr<Stage>>& stages) {
  if (shared_ == nullptr) return absl::OkStatus();
  const std::string path = JoinPath(run_dir, kAnnouncement);
  TDOCK_RETURN_IF_ERROR(WriteFileAtomically(context_.env, path, AnnouncementOf(shared_->address(), name())));
  announcement_ = path;
  for (const std::string& warning : shared_->warnings()) context_.log(absl::StrCat("warning: ", warning));
  context_.log(absl::StrCat("the dock of this run is at ", shared_->address(), "; for example: tdock dock status ",
                            name(), ReachedWith()));
  for (const auto& stage : stages) {
    if (!IsExternal(*stage)) continue;
    const ConsumerOptions& consumer = stage->consumer();
    context_.log(absl::StrCat("stage '", consumer.name, "' is left to another process, which reads ",
                              absl::StrJoin(consumer.reads, ", "), " and writes ",
                              absl::StrJoin(consumer.writes, ", ")));
  }
  return absl::OkStatus();
}

void RunPartition::Close() {
  // The run's own result counts: what cannot be tidied up is refused to the next run by name.
  if (!announcement_.empty()) context_.env.Remove(std::exchange(announcement_, "")).IgnoreError();
  for (const std::string& partition : std::exchange(created_, {})) {
    dock().Seal(partition).IgnoreError();
    if (!section_.address.empty()) dock().DropPartition(partition).IgnoreError();
  }
}

}  // namespace tdock::trainer
