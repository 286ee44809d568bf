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

  Dock& dock() { return shared_ ? shared_->dock() : context_.run_dock != nullptr ? *context_.run_dock : *own_; }
  const std::string& name() const { return section_.partition; }

  // Whether other processes have the dock, too; and whether it is there when this process is killed.
  bool shared() const { return shared_ != nullptr; }
  bool outlives_run() const { return !section_.address.empty(); }

  // Creates it, or, under a name of its own in `options`, another one that the run needs beside it. AlreadyExists if
  // the dock has a partition of that name, saying what would be right.
  absl::Status Create(PartitionOptions options);
  // Creates it as it was when it was exported, on a dock inside this process.
  absl::Status Import(absl::string_view image);
  // The same, or takes over the one that this run, in `run_dir`, has left on the dock when it was killed; another one
  // begins empty. Then, once the stages are registered, RollBack().
  absl::Status TakeOver(PartitionOptions options, const std::string& run_dir);
  // Leaves on a partition that was taken over what was there after this step, nothing, and the version of the weights.
  absl::Status RollBack(int64_t step, int64_t weights_version);
  // On a dock that outlives the run: what was completed up to this step need not be rolled back any more.
  absl::Status Commit(int64_t step);

  // Whether another process carries out the stage.
  bool IsExternal(const Stage& stage) const;
  // InvalidArgument if trainer.external_stages names what is not among the stages, or a stage that another process
  // cannot carry out.
  absl::Status CheckExternal(const std::vector<std::unique_ptr<Stage>>& stages) const;
  // Waits until another process has carried it out: see AwaitStage().
  absl::StatusOr<int64_t> Await(const Stage& stage, RowId first_row, StageContext& context);

  // Where others share the dock: says where it is, to the log and in `run_dir`/dock.json.
  absl::Status Announce(const std::string& run_dir, const std::vector<std::unique_ptr<Stage>>& stages);

  // Tells processes that wait for rows that no more come, and leaves nothing on the dock.
  void Close();

 private:
  RunPartition(const DockSection& section, const RunContext& context) : section_(section), context_(context) {}

  bool IsOfRun(const std::string& run_dir) const;
  // What to do about a partition that is in the way.
  std::string Removal(const std::string& partition) const;
  // The options of `tdock dock` that reach the dock.
  std::string ReachedWith() const;

  const DockSection& section_;
  const RunContext context_;
  std::unique_ptr<Dock> own_;
  std::unique_ptr<dock::SharedDock> shared_;
  std::vector<std::string> created_;  // partitions
  bool taken_over_ = false;
  std::string last_consumer_;  // that rows are retained for
  std::string announcement_;   // the file, while it is there
};

}  // namespace tdock::trainer
