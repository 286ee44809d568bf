// The partition of a dock that a run works on, and how other processes find it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tdock/dock.h"
#include "trainer/loop/run_context.h"
#include "trainer/loop/sections.h"
#include "trainer/stages/stage.h"

namespace tdock::trainer {

// Used by one thread at a time.
class RunPartition {
 public:
  // On a dock inside this process, unless the section, which must outlive the result, says that others share it. Errors
  // name the key.
  static absl::StatusOr<std::unique_ptr<RunPartition>> Open(const DockSection& section, const RunContext& context);
  ~RunPartition() { Close(); }
  RunPartition(const RunPartition&) = delete;
  RunPartition& operator=(const RunPartition&) = delete;

  Dock& dock() { return shared_ ? shared_->dock() : *own_; }
  const std::string& name() const { return section_.partition; }

  // Creates it. AlreadyExists if the dock has a partition of that name, saying what would be right.
  absl::Status Create(PartitionOptions options);

  // Whether another process carries out the stage.
  bool IsExternal(const Stage& stage) const;
  // InvalidArgument if trainer.external_stages names what is not among the stages, or a stage that another process
  // cannot carry out.
  absl::Status CheckExternal(const std::vector<std::unique_ptr<Stage>>& stages) const;
  // Waits until another process has carried it out: see AwaitStage().
  absl::StatusOr<int64_t> Await(const Stage& stage, StageContext& context);

  // Where others share the dock: says where it is, to the log and in `run_dir`/dock.json.
  absl::Status Announce(const std::string& run_dir, const std::vector<std::unique_ptr<Stage>>& stages);

  // Tells processes that wait for rows that no more come, and leaves nothing on the dock.
  void Close();

 private:
  RunPartition(const DockSection& section, const RunContext& context) : section_(section), context_(context) {}

  // The options of `tdock dock` that reach the dock.
  std::string ReachedWith() const;

  const DockSection& section_;
  const RunContext context_;
  std::unique_ptr<Dock> own_;
  std::unique_ptr<dock::SharedDock> shared_;
  bool created_ = false;
  std::string announcement_;  // the file, while it is there
};

}  // namespace tdock::trainer
