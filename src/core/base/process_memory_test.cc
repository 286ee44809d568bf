#include "core/base/process_memory.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tdock {
namespace {

// Files with these contents.
class FilesEnv final : public Env {
 public:
  explicit FilesEnv(std::map<std::string, std::string> files) : files_(std::move(files)) {}
  absl::StatusOr<std::string> ReadFile(const std::string& path) override {
    const auto found = files_.find(path);
    if (found == files_.end()) return absl::NotFoundError(path);
    return found->second;
  }
  absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(const std::string& path) override { return Nothing(path); }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForReading(const std::string& path) override {
    return Nothing(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWriting(const std::string& path, WriteMode) override {
    return Nothing(path);
  }
  absl::Status Rename(const std::string& from, const std::string&) override { return Nothing(from); }
  absl::Status Remove(const std::string& path) override { return Nothing(path); }
  absl::Status RemoveAll(const std::string& path) override { return Nothing(path); }
  absl::Status CreateFolders(const std::string& path) override { return Nothing(path); }
  absl::Status CreateNewFolder(const std::string& path) override { return Nothing(path); }
  bool Exists(const std::string& path) override { return files_.contains(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override { return Nothing(path); }

 private:
  static absl::Status Nothing(const std::string& path) { return absl::UnimplementedError(path); }
  const std::map<std::string, std::string> files_;
};

TEST(AvailableMemory, IsWhatTheMachineAndTheControlGroupLeave) {
  const std::string machine = "MemTotal:  4000 kB\nMemAvailable:   2000 kB\n";
  FilesEnv free({{"/proc/meminfo", machine}});
  EXPECT_EQ(AvailableMemory(free, 100), 2000 * 1024 + 100);
  FilesEnv limited({{"/proc/meminfo", machine},
                    {"/sys/fs/cgroup/memory.max", "900000\n"},
                    {"/sys/fs/cgroup/memory.current", "500000\n"},
                    {"/sys/fs/cgroup/memory.stat", "anon 1\nfile 200000\n"}});
  EXPECT_EQ(AvailableMemory(limited, 100), 600000 + 100);
  FilesEnv unlimited({{"/proc/meminfo", machine}, {"/sys/fs/cgroup/memory.max", "max\n"}});
  EXPECT_EQ(AvailableMemory(unlimited, 0), 2000 * 1024);
  FilesEnv silent({});
  EXPECT_EQ(AvailableMemory(silent, 0), std::nullopt);
}

TEST(ProcessMemory, IsThatOfThisProcess) {
  const auto resident = ResidentMemory(Env::Real()), peak = PeakResidentMemory(Env::Real());
  ASSERT_TRUE(resident.ok() && peak.ok()) << resident.status() << peak.status();
  EXPECT_GT(*resident, 1 << 20);
  EXPECT_GT(*peak, 1 << 20);
  FilesEnv told(
      {{"/proc/self/statm", "700 300 20 1 0 90 0\n"}, {"/proc/self/status", "Name:\ta\nVmHWM:\t  1300 kB\n"}});
  EXPECT_EQ(*PeakResidentMemory(told), 1300 * 1024);
  EXPECT_EQ(*ResidentMemory(told) % 300, 0);
  FilesEnv silent({});
  EXPECT_FALSE(ResidentMemory(silent).ok());
  EXPECT_FALSE(PeakResidentMemory(silent).ok());
}

}  // namespace
}  // namespace tdock
