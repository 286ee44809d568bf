#include "trainer/run_log/tensorboard.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "core/base/testing/limited_env.h"

namespace tdock::trainer {
namespace {

constexpr absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

std::string MakeTempFolder() {
  std::string path = testing::TempDir() + "/tensorboard_test_XXXXXX";
  return ::mkdtemp(path.data());
}

TEST(Crc32c, MatchesThePublishedVectors) {
  // RFC 3720, appendix B.4, and the check value of the CRC catalogue.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending.push_back(static_cast<char>(i));
  EXPECT_EQ(Crc32c(ascending), 0x46dd794eu);
  EXPECT_EQ(Crc32c(std::string(ascending.rbegin(), ascending.rend())), 0x113fdb5cu);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(TensorBoardWriter, WritesTheRecordsThatTensorBoardReads) {
  const std::string folder = MakeTempFolder() + "/a/b";
  auto writer = TensorBoardWriter::Create(Env::Real(), folder, "host", kNow, 300);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->WriteScalars(300, {{"x", 0.5}}, kNow + absl::Milliseconds(500)).ok());
  ASSERT_TRUE((*writer)->Sync().ok());

  const auto bytes = Env::Real().ReadFile(folder + "/events.out.tfevents.1700000000.host");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  // Length 24 and its masked checksum, as every event file begins; wall time; file version; checksum.
  EXPECT_EQ(absl::BytesToHexString(bytes->substr(0, 12)), "1800000000000000a37f4b22");
  EXPECT_EQ(absl::BytesToHexString(bytes->substr(12, 9)), "0900000040fc54d941");
  EXPECT_EQ(bytes->substr(21, 15),
            "\x1a\x0d"
            "brain.Event:2");
  // Wall time, step 300, and a summary with one value: tag "x", simple_value 0.5.
  EXPECT_EQ(absl::BytesToHexString(bytes->substr(40 + 12, 24)), "0900002040fc54d94110ac022a0a0a080a0178150000003f");
  EXPECT_EQ(bytes->size(), 40u + 12 + 24 + 4);
}

TEST(TensorBoardWriter, AFileThatFollowsOthersHasALaterNameAndMarksTheRestart) {
  const std::string folder = MakeTempFolder();
  for (const char* name : {"events.out.tfevents.1700000007.other", "events.out.tfevents.x", "readme"}) {
    ASSERT_TRUE(WriteFileAtomically(Env::Real(), folder + "/" + name, "").ok());
  }
  const auto writer = TensorBoardWriter::Create(Env::Real(), folder, "host", kNow, 300);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const auto bytes = Env::Real().ReadFile(folder + "/events.out.tfevents.1700000008.host");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ASSERT_EQ(bytes->size(), 40u + 12 + 16 + 4);
  // Wall time, step 300, and a session log with the status START.
  EXPECT_EQ(absl::BytesToHexString(bytes->substr(40 + 12, 16)), "0900000040fc54d94110ac023a020801");
}

TEST(TensorBoardWriter, RepeatsTheErrorOfAFullDisk) {
  const std::string folder = MakeTempFolder();
  LimitedEnv env(Env::Real(), 60);
  auto writer = TensorBoardWriter::Create(env, folder, "host", kNow, 1);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const absl::Status full = (*writer)->WriteScalars(1, {{"a/long/tag", 1.0}}, kNow);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  env.SetLeft(1'000'000);
  EXPECT_EQ((*writer)->WriteScalars(2, {{"x", 1.0}}, kNow), full) << "nothing may follow a torn record";
  EXPECT_EQ((*writer)->Sync(), full);
}

}  // namespace
}  // namespace tdock::trainer
