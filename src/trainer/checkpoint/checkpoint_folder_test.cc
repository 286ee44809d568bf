#include "trainer/checkpoint/checkpoint_folder.h"
#include "core/base/testing/hostile_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/testing/failing_env.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/limited_env.h"
#include "core/tensor/checksum.h"

namespace tdock::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string NewPath() {
  std::string path = testing::TempDir() + "/checkpoints_XXXXXX";
  return ::mkdtemp(path.data());
}

Manifest Head(int64_t step, int64_t part = 0) {
  return {.place = {step, part}, .saved = absl::FromUnixSeconds(1'700'000'000), .metrics = {}, .files = {}};
}

// Writes two files, one of them in a folder.
std::function<absl::Status(const std::string&)> Files(Env& env, const std::string& contents) {
  return [&env, contents](const std::string& folder) -> absl::Status {
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(folder, "state.json"), contents));
    TDOCK_RETURN_IF_ERROR(env.CreateFolders(JoinPath(folder, "more")));
    return WriteFileAtomically(env, JoinPath(folder, "more/weights"), std::string(100'000, 'w'));
  };
}

TEST(Manifest, QuotesWhatTheFileSays) {
  Manifest whole = Head(5);
  whole.metrics["loss"] = 1;
  whole.files["state.json"] = {1, 2};
  nlohmann::json right = ReadJson(ManifestJson(whole));
  right["version"] = 1;  // without a checksum of its own, so that what is wrong is found
  right.erase("manifest_xxh3");
  ASSERT_TRUE(ParseManifest(JsonText(right)).ok()) << ParseManifest(JsonText(right)).status();
  std::vector<std::string> texts = {kHostileText};
  right["manifest_xxh3"] = kHostileText;
  texts.push_back(JsonText(right));
  right.erase("manifest_xxh3");
  const nlohmann::json text = kHostileText;
  for (const auto& [key, value] : right.items()) {
    for (const nlohmann::json& hostile : {text, nlohmann::json::object({{kHostileText, text}})}) {
      nlohmann::json wrong = right;
      wrong[key] = hostile;
      texts.push_back(JsonText(wrong));
    }
  }
  for (const nlohmann::json& file :
       {nlohmann::json::object({{"bytes", 1}}), nlohmann::json::object({{"bytes", 1}, {"xxh3", text}})}) {
    for (const std::string& path : {std::string(kHostileText), absl::StrCat("../", kHostileText)}) {
      nlohmann::json wrong = right;
      wrong["files"] = nlohmann::json::object({{path, file}});
      texts.push_back(JsonText(wrong));
    }
  }
  for (const std::string& manifest : texts) {
    const absl::Status status = ParseManifest(manifest).status();
    EXPECT_FALSE(status.ok()) << manifest;
    EXPECT_TRUE(IsSafeForTerminals(status.message())) << EscapeForTerminal(status.message());
  }
}

TEST(CheckpointFolder, QuotesNamesOfFoldersAndFiles) {
  Env& env = Env::Real();
  const std::string folder = JoinPath(NewPath(), kHostileText);
  Manifest manifest = Head(1);
  manifest.files[kHostileText] = {1, 2};
  ASSERT_TRUE(env.CreateFolders(folder).ok());
  const auto verify = [&] {
    const absl::Status status = VerifyCheckpoint(env, folder).status();
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(IsSafeForTerminals(status.message())) << EscapeForTerminal(status.message());
  };
  verify();
  ASSERT_TRUE(WriteFileAtomically(env, JoinPath(folder, "manifest.json"), absl::string_view("{")).ok());
  verify();
  ASSERT_TRUE(WriteFileAtomically(env, JoinPath(folder, "manifest.json"), ManifestJson(manifest)).ok());
  verify();
  for (const char* contents : {"two", "1"}) {
    ASSERT_TRUE(WriteFileAtomically(env, JoinPath(folder, kHostileText), absl::string_view(contents)).ok());
    verify();
  }
}

TEST(CheckpointFolder, ListsWhatItHasInTheOrderOfSteps) {
  Env& env = Env::Real();
  CheckpointFolder folder(env, JoinPath(NewPath(), "checkpoints"));
  EXPECT_THAT(*folder.List(), IsEmpty());
  for (const auto& [step, part] : {std::pair(1'000'000, 0), std::pair(5, 2), std::pair(50, 0), std::pair(5, 0)}) {
    ASSERT_EQ(folder.Write(Head(step, part), Files(env, "{}")), absl::OkStatus());
  }
  // Somebody else's, and one that was not finished.
  for (const char* other : {"notes", "step-7", "step-00000x", ".step-000060"}) {
    ASSERT_TRUE(env.CreateFolders(JoinPath(folder.path(), other)).ok());
  }
  EXPECT_THAT(*folder.List(), ElementsAre(CheckpointPlace{5, 0}, CheckpointPlace{5, 2}, CheckpointPlace{50, 0},
                                          CheckpointPlace{1'000'000, 0}));
  EXPECT_EQ(folder.PathOf({5, 2}), JoinPath(folder.path(), "step-000005-02"));
  ASSERT_EQ(folder.RemoveUnfinished(), absl::OkStatus());
  EXPECT_FALSE(env.Exists(JoinPath(folder.path(), ".step-000060")));
  EXPECT_TRUE(env.Exists(JoinPath(folder.path(), "notes")));
  ASSERT_EQ(folder.Remove({5, 2}), absl::OkStatus());
  EXPECT_EQ(folder.List()->size(), 3u);
}

TEST(CheckpointFolder, KnowsEachFileAndItsContents) {
  Env& env = Env::Real();
  CheckpointFolder folder(env, NewPath());
  Manifest head = Head(3);
  head.metrics = {{"val/accuracy", 0.25}};
  ASSERT_EQ(folder.Write(head, Files(env, "{}")), absl::OkStatus());
  const std::string path = folder.PathOf({3, 0});
  const auto manifest = VerifyCheckpoint(env, path);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->place, (CheckpointPlace{3, 0}));
  EXPECT_EQ(manifest->saved, head.saved);
  EXPECT_EQ(manifest->metrics, head.metrics);
  ASSERT_EQ(manifest->files.size(), 2u);
  EXPECT_EQ(manifest->files.at("more/weights").bytes, 100'000u);
  // Whoever has verified another file has another manifest.
  ASSERT_EQ(folder.Write(Head(4), Files(env, "{ }")), absl::OkStatus());
  EXPECT_NE(*ManifestChecksum(env, folder.PathOf({4, 0})), *ManifestChecksum(env, path));
  EXPECT_THAT(ManifestChecksum(env, NewPath()).status(), Fails(absl::StatusCode::kNotFound, {"manifest.json"}));

  const auto with = [&](const std::string& file, const std::string& contents) {
    const std::string before = *env.ReadFile(JoinPath(path, file));
    EXPECT_TRUE(WriteFileAtomically(env, JoinPath(path, file), contents).ok());
    const absl::Status status = VerifyCheckpoint(env, path).status();
    EXPECT_TRUE(WriteFileAtomically(env, JoinPath(path, file), before).ok());
    return status;
  };
  EXPECT_THAT(with("state.json", "{"), Fails(absl::StatusCode::kDataLoss, {path, "state.json has 1 bytes"}));
  EXPECT_THAT(with("state.json", "[]"), Fails(absl::StatusCode::kDataLoss, {path, "state.json has changed"}));
  ASSERT_EQ(env.Remove(JoinPath(path, "more/weights")), absl::OkStatus());
  EXPECT_THAT(VerifyCheckpoint(env, path).status(), Fails(absl::StatusCode::kDataLoss, {path, "more/weights"}));
  EXPECT_THAT(VerifyCheckpoint(env, NewPath()).status(), Fails(absl::StatusCode::kNotFound, {"manifest.json"}));
}

TEST(CheckpointFolder, ReplacesTheOneOfTheSamePlace) {
  Env& env = Env::Real();
  CheckpointFolder folder(env, NewPath());
  ASSERT_EQ(folder.Write(Head(3), Files(env, "old")), absl::OkStatus());
  ASSERT_EQ(folder.Write(Head(3), Files(env, "new")), absl::OkStatus());
  EXPECT_THAT(*env.List(folder.path()), ElementsAre("step-000003"));
  EXPECT_EQ(*env.ReadFile(JoinPath(folder.PathOf({3, 0}), "state.json")), "new");
}

// Whatever call fails while the next one is written.
TEST(CheckpointFolder, TheLastOneStaysIntactWhenTheNextCannotBeWritten) {
  CheckpointFolder real(Env::Real(), NewPath());
  ASSERT_EQ(real.Write(Head(1), Files(Env::Real(), "first")), absl::OkStatus());
  int64_t failures = 0;
  for (bool failed = true; failed; ++failures) {
    FailingEnv env(Env::Real(), failures);
    CheckpointFolder folder(env, real.path());
    const absl::Status status = folder.Write(Head(2), Files(env, "second"));
    failed = env.failed();
    EXPECT_EQ(status.ok(), !failed) << failures;
    ASSERT_TRUE(VerifyCheckpoint(Env::Real(), real.PathOf({1, 0})).ok()) << status;
    EXPECT_EQ(real.List()->size(), failed ? 1u : 2u) << status;
  }
  EXPECT_GT(failures, 15);
  EXPECT_THAT(*real.List(), ElementsAre(CheckpointPlace{1, 0}, CheckpointPlace{2, 0}));
}

TEST(CheckpointFolder, LeavesNothingOnAFullDisk) {
  Env& real = Env::Real();
  CheckpointFolder written(real, NewPath());
  ASSERT_EQ(written.Write(Head(1), Files(real, "first")), absl::OkStatus());
  for (const int64_t bytes : {0, 1, 50'000, 100'010}) {
    LimitedEnv env(real, bytes);
    CheckpointFolder folder(env, written.path());
    EXPECT_THAT(folder.Write(Head(2), Files(env, "second")),
                Fails(absl::StatusCode::kResourceExhausted, {"step-000002"}));
    EXPECT_THAT(*real.List(written.path()), ElementsAre("step-000001"));
  }
}

// What version 1 would have written: the same without a checksum of its own.
std::string WithoutChecksum(const std::string& manifest) {
  std::string text = absl::StrReplaceAll(manifest, {{"\"version\": 2", "\"version\": 1"}});
  const size_t begin = text.find(" \"manifest_xxh3\"");
  return text.erase(begin, text.find('\n', begin) + 1 - begin);
}

// Each byte of each file, manifest.json included.
TEST(CheckpointFolder, AnyChangedBitIsDataLossThatNamesItsFile) {
  Env& env = Env::Real();
  CheckpointFolder folder(env, NewPath());
  Manifest head = Head(3);
  head.metrics = {{"val/accuracy", 0.25}};
  ASSERT_EQ(folder.Write(head,
                         [&](const std::string& path) -> absl::Status {
                           TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(path, "state.json"), "{}"));
                           return WriteFileAtomically(env, JoinPath(path, "weights"), std::string(300, 'w'));
                         }),
            absl::OkStatus());
  const std::string path = folder.PathOf({3, 0});
  const std::vector<std::string> names = *env.List(path);
  for (const std::string& name : names) {
    const std::string file = JoinPath(path, name), good = *env.ReadFile(file);
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      std::ofstream(file, std::ios::binary) << bad;
      const absl::Status status = VerifyCheckpoint(env, path).status();
      // A digit of the version may become that of a newer one.
      if (absl::IsFailedPrecondition(status)) {
        EXPECT_THAT(status.message(), ::testing::HasSubstr("version")) << bad;
        continue;
      }
      ASSERT_THAT(status, Fails(absl::StatusCode::kDataLoss, {path, name})) << bad;
    }
    for (const size_t size : {size_t{0}, good.size() / 2, good.size() - 1}) {
      std::ofstream(file, std::ios::binary) << good.substr(0, size);
      EXPECT_THAT(VerifyCheckpoint(env, path).status(), Fails(absl::StatusCode::kDataLoss, {path, name})) << size;
    }
    std::ofstream(file, std::ios::binary) << good;
  }
  EXPECT_TRUE(VerifyCheckpoint(env, path).ok());
}

TEST(CheckpointFolder, NothingIsReadThatTheManifestDoesNotList) {
  Env& env = Env::Real();
  CheckpointFolder folder(env, NewPath());
  ASSERT_EQ(folder.Write(Head(3), Files(env, "{}")), absl::OkStatus());
  const std::string path = folder.PathOf({3, 0}), manifest = JoinPath(path, "manifest.json");
  for (const char* name : {"state-rank-1-of-2.json", "more/other.bin", "new/state.json"}) {
    ASSERT_TRUE(env.CreateFolders(JoinPath(path, "new")).ok());
    ASSERT_TRUE(WriteFileAtomically(env, JoinPath(path, name), "{}").ok());
    EXPECT_THAT(VerifyCheckpoint(env, path).status(), Fails(absl::StatusCode::kDataLoss, {path, name, "not list"}));
    ASSERT_TRUE(env.Remove(JoinPath(path, name)).ok());
  }
  ASSERT_TRUE(WriteFileAtomically(env, JoinPath(path, ".notes"), "of a file manager").ok());
  EXPECT_TRUE(VerifyCheckpoint(env, path).ok()) << "an empty folder, and a hidden file";

  // With a checksum that is right, and as version 1 wrote it: an entry removed, and two of them swapped.
  const Manifest good = *ReadManifest(env, path);
  Manifest without = good, swapped = good;
  without.files.erase("state.json");
  std::swap(swapped.files["state.json"], swapped.files["more/weights"]);
  const auto as = [](const Manifest& one) { return std::pair(ManifestJson(one), WithoutChecksum(ManifestJson(one))); };
  const auto verified = [&](const std::string& text) {
    EXPECT_TRUE(WriteFileAtomically(env, manifest, text).ok());
    return VerifyCheckpoint(env, path);
  };
  for (const std::string& text : {as(without).first, as(without).second}) {
    EXPECT_THAT(verified(text).status(), Fails(absl::StatusCode::kDataLoss, {path, "state.json", "not list"}));
  }
  for (const std::string& text : {as(swapped).first, as(swapped).second}) {
    EXPECT_THAT(verified(text).status(), Fails(absl::StatusCode::kDataLoss, {path, " bytes"}));
  }
  EXPECT_TRUE(verified(as(good).first)->has_checksum);
  const auto old = verified(as(good).second);
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_FALSE(old->has_checksum);
}

TEST(Manifest, ItsChecksumIsOfItsBytesWithZerosInItsPlace) {
  std::string text = ManifestJson(Head(7, 1));
  const size_t at = text.find("\"manifest_xxh3\": \"") + 18;
  const std::string digits = text.substr(at, 16);
  text.replace(at, 16, "0000000000000000");
  EXPECT_EQ(absl::StrFormat("%016x", Checksum(std::as_bytes(std::span(text.data(), text.size())))), digits);
  EXPECT_TRUE(ParseManifest(text.replace(at, 16, digits)).ok()) << text;
}

TEST(Manifest, AMissingChecksumIsNotThatOfAnOlderVersion) {
  const std::string good = ManifestJson(Head(7, 1));
  const absl::StatusCode invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(
      ParseManifest(absl::StrReplaceAll(WithoutChecksum(good), {{"\"version\": 1", "\"version\": 2"}})).status(),
      Fails(invalid, {"manifest_xxh3"}));
  for (const auto& [from, to] : {std::pair("\"step\": 7", "\"step\": 8"),
                                 {"\"version\": 2", "\"version\": 1"},
                                 {"\"part\": 1", "\"part\":  1"},
                                 {"manifest_xxh3", "manifest_xxh4"}}) {
    EXPECT_THAT(ParseManifest(absl::StrReplaceAll(good, {{from, to}})).status(), Fails(invalid, {"manifest_xxh3"}))
        << to;
  }
}

TEST(Manifest, RefusesWhatItDoesNotMean) {
  const std::string good = WithoutChecksum(ManifestJson(Head(7, 1)));
  ASSERT_TRUE(ParseManifest(good).ok()) << good;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return ParseManifest(text.replace(at, from.size(), to)).status();
  };
  EXPECT_THAT(with("\"version\": 1", "\"version\": 3"), Fails(absl::StatusCode::kFailedPrecondition, {"version 3"}));
  const absl::StatusCode invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(with("transfer-dock checkpoint", "something"), Fails(invalid, {"format"}));
  EXPECT_THAT(with("\"version\": 1", "\"version\": 0"), Fails(invalid, {"version"}));
  EXPECT_THAT(with("\"step\": 7", "\"step\": -7"), Fails(invalid, {"step"}));
  EXPECT_THAT(with("2023", "last year"), Fails(invalid, {"saved"}));
  EXPECT_THAT(with("\"files\": {}", "\"files\": []"), Fails(invalid, {"files"}));
  for (const char* path : {"../a", "/a", "a/../../b", "", "a//b"}) {
    const std::string file = absl::StrCat(R"("files": {")", path, R"(": {"bytes": 1, "xxh3": "0"}})");
    EXPECT_THAT(with("\"files\": {}", file), Fails(invalid, {"outside"})) << path;
  }
  EXPECT_THAT(with("\"files\": {}", R"("files": {"a": {"bytes": -1, "xxh3": "0"}})"), Fails(invalid, {"'a'"}));
  EXPECT_THAT(with("\"files\": {}", R"("files": {"a": {"bytes": 1, "xxh3": "x"}})"), Fails(invalid, {"'a'"}));
  EXPECT_THAT(ParseManifest("{").status(), Fails(invalid));
}

TEST(CheckpointFolder, HasOneThatIsReplacedWhateverFails) {
  const auto write = [](const std::string& contents) {
    return [contents](const std::string& folder) {
      return WriteFileAtomically(Env::Real(), JoinPath(folder, "file"), contents);
    };
  };
  bool failed = true;
  for (int64_t call = 0; failed; ++call) {
    std::string path = testing::TempDir() + "/replaced_XXXXXX";
    path = ::mkdtemp(path.data());
    const Manifest head{.place = {3, 0}, .saved = absl::UnixEpoch(), .metrics = {}, .files = {}};
    ASSERT_TRUE(CheckpointFolder(Env::Real(), path).Write(head, write("old")).ok());
    FailingEnv env(Env::Real(), call);
    const absl::Status replaced = CheckpointFolder(env, path).Write(head, write("new"));
    failed = env.failed();
    CheckpointFolder folder(Env::Real(), path);
    const std::string left = folder.PathOf(head.place);
    ASSERT_TRUE(VerifyCheckpoint(Env::Real(), left).ok()) << call;
    const std::string contents = *Env::Real().ReadFile(left + "/file");
    EXPECT_TRUE(replaced.ok() ? contents == "new" : contents == "old" || contents == "new") << call;
    // Killed between the two renames.
    ASSERT_TRUE(Env::Real().RemoveAll(path + "/.step-000003-replaced").ok());
    ASSERT_TRUE(Env::Real().Rename(left, path + "/.step-000003-replaced").ok());
    ASSERT_TRUE(folder.RemoveUnfinished().ok());
    EXPECT_TRUE(VerifyCheckpoint(Env::Real(), left).ok()) << call;
    EXPECT_EQ(Env::Real().List(path)->size(), 1u) << call;
  }
}

}  // namespace
}  // namespace tdock::trainer
