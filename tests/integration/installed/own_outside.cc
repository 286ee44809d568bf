// A program that brings a clock and files of its own.
#include <atomic>
#include <iostream>
#include <map>

#include "tdock/clock.h"
#include "tdock/env.h"
#include "tdock/frame.h"
#include "tdock/local_dock.h"

namespace {

// The real time, and what was added to it.
class ShiftedClock final : public tdock::Clock {
 public:
  void AddSeconds(int64_t seconds) { added_seconds_ += seconds; }

  absl::Time Now() override { return Real().Now() + Added(); }
  void Wait(tdock::CondVar& cv, tdock::Mutex& mu, absl::Time deadline) override {
    Real().Wait(cv, mu, Real().Now() + (deadline - Now()));
  }
  std::optional<AlarmId> SetAlarm(absl::Time at, std::function<void()> call) override {
    return Real().SetAlarm(at - Added(), std::move(call));
  }
  void CancelAlarm(const AlarmId& id) override { Real().CancelAlarm(id); }

 private:
  absl::Duration Added() const { return absl::Seconds(added_seconds_.load()); }

  std::atomic<int64_t> added_seconds_ = 0;
};

// Files that are only in memory.
class MemoryEnv final : public tdock::Env {
 public:
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    const auto file = files_.find(path);
    if (file == files_.end()) return absl::NotFoundError(path);
    return file->second;
  }
  absl::StatusOr<std::unique_ptr<tdock::MappedFile>> MapFile(const std::string& path) override {
    const absl::StatusOr<std::string> contents = ReadFile(path);
    if (!contents.ok()) return contents.status();
    return std::make_unique<Mapped>(*contents);
  }
  absl::StatusOr<std::unique_ptr<tdock::ReadableFile>> OpenForReading(const std::string& path) override {
    return absl::UnimplementedError(path);
  }
  absl::StatusOr<std::unique_ptr<tdock::WritableFile>> OpenForWriting(const std::string& path,
                                                                      tdock::WriteMode mode) override {
    if (mode == tdock::WriteMode::kTruncate) files_[path].clear();
    return std::make_unique<Written>(files_[path]);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    files_[to] = files_[from];
    return Remove(from);
  }
  absl::Status Remove(const std::string& path) override {
    return files_.erase(path) == 0 ? absl::NotFoundError(path) : absl::OkStatus();
  }
  absl::Status RemoveAll(const std::string& path) override {
    files_.erase(path);
    return absl::OkStatus();
  }
  absl::Status CreateFolders(const std::string&) override { return absl::OkStatus(); }
  absl::Status CreateNewFolder(const std::string&) override { return absl::OkStatus(); }
  bool Exists(const std::string& path) override { return files_.contains(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override {
    std::vector<std::string> names;
    for (const auto& file : files_) names.push_back(file.first);
    return names;
  }

 private:
  class Written final : public tdock::WritableFile {
   public:
    explicit Written(std::string& contents) : contents_(contents) {}
    absl::Status Append(absl::string_view data) override {
      contents_.append(data.data(), data.size());
      return absl::OkStatus();
    }
    absl::Status Sync() override { return absl::OkStatus(); }
    absl::Status Close() override { return absl::OkStatus(); }

   private:
    std::string& contents_;
  };

  class Mapped final : public tdock::MappedFile {
   public:
    explicit Mapped(const std::string& contents) : buffer_(tdock::Buffer::CopyOf(std::as_bytes(std::span(contents)))) {}
    std::span<const std::byte> bytes() const override { return buffer_.bytes(); }

   private:
    const tdock::Buffer buffer_;
  };

  std::map<std::string, std::string> files_;
};

absl::Status RunFiles() {
  MemoryEnv env;
  tdock::Batch batch;
  absl::Status status = batch.Add("reward", tdock::Column::FromValues<float>({0.5, 1}));
  if (status.ok()) status = tdock::SaveBatch(env, "rewards", tdock::MetaBatch(batch));
  if (!status.ok()) return status;
  const absl::StatusOr<tdock::MetaBatch> loaded = tdock::LoadBatch(env, "rewards");
  if (!loaded.ok()) return loaded.status();
  std::cout << env.List("")->size() << " file, " << loaded->rows() << " rows\n";
  return absl::OkStatus();
}

absl::Status RunTime() {
  ShiftedClock clock;
  const std::unique_ptr<tdock::Dock> dock = tdock::MakeLocalDock({.clock = &clock});
  absl::Status status = dock->CreatePartition({.name = "train", .growing = true});
  if (status.ok()) status = dock->RegisterConsumer("train", {.name = "rollout", .lease_duration = absl::Hours(1)});
  if (status.ok()) status = dock->Put({.partition = "train", .new_rows = 1}).status();
  const auto take = [&] {
    return dock->Take({.partition = "train", .consumer = "rollout", .deadline = clock.Now() + absl::Milliseconds(10)});
  };
  if (status.ok()) status = take().status();
  if (!status.ok()) return status;
  std::cout << "leased: " << absl::StatusCodeToString(take().status().code()) << "\n";
  clock.AddSeconds(3600);
  const absl::StatusOr<tdock::Taken> again = take();
  if (!again.ok()) return again.status();
  std::cout << "an hour later: " << again->rows.size() << " row\n";
  return absl::OkStatus();
}

}  // namespace

int main() {
  absl::Status status = RunFiles();
  if (status.ok()) status = RunTime();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
