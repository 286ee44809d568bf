#include "trainer/rollout_servers/weight_check.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "model/files/weight_files.h"

namespace tdock::trainer {
namespace {

constexpr auto kWrong = absl::StatusCode::kFailedPrecondition;

// Made by Python's hashlib: 1 and -0.3 as numbers of each type.
constexpr char kF32[] = "f6253bfe32cb352a1bd778ebf3bd4196007f491427b9aa0d2141fea46215377c";
constexpr char kBF16[] = "7857c8d0f4259770fc150386818dec1e335f5365aac42c2353bc9b174f09eb94";
constexpr char kF16[] = "760759db660fcbd5df7403e7e40989ad2e47035baf8653621bbf8b5115085735";
const std::string kOther(64, '0');

class WeightCheckTest : public testing::Test {
 protected:
  ~WeightCheckTest() override { std::filesystem::remove_all(folder_); }

  // The weights "norm", with these numbers, and "down".
  void Write(float first, float second) {
    const std::vector<model::NamedInfo> infos = {{"norm", {DType::kF32, {2}}}, {"down", {DType::kF32, {2, 2}}}};
    std::vector<std::byte> bytes(16);
    const auto bytes_of = [&](size_t i) -> absl::StatusOr<std::span<const std::byte>> {
      const float numbers[] = {first, second, first, second};
      std::memcpy(bytes.data(), numbers, sizeof numbers);
      return std::span<const std::byte>(bytes).first(i == 0 ? 8 : 16);
    };
    ASSERT_TRUE(Env::Real().CreateFolders(folder_).ok());
    ASSERT_TRUE(model::WriteWeightFiles(Env::Real(), folder_, infos, UINT64_MAX, bytes_of).ok());
  }
  FolderDigests Sent() const { return {Env::Real(), folder_}; }

  const std::string folder_ = testing::TempDir() + absl::StrCat("check_", getpid());
  WeightCheck check_;
};

TEST_F(WeightCheckTest, HashesWeightsInEachDtype) {
  Write(1, -0.3F);
  FolderDigests sent = Sent();
  for (const auto& [dtype, digest] : {std::pair{DType::kF32, kF32}, {DType::kBF16, kBF16}, {DType::kF16, kF16}}) {
    const auto& digests = sent.In(dtype);
    ASSERT_TRUE(digests.ok()) << digests.status();
    EXPECT_EQ(digests->size(), 2U);
    EXPECT_EQ(digests->at("norm"), digest);
  }
  FolderDigests missing(Env::Real(), folder_ + "/none");
  EXPECT_THAT(missing.In(DType::kF32).status(), Fails(absl::StatusCode::kNotFound));
}

TEST_F(WeightCheckTest, ComparesInTheDtypeThatAServerComputesIn) {
  for (const std::string& digest : {std::string(kF32), std::string(kBF16), std::string(kF16)}) {
    Write(1, -0.3F);
    FolderDigests sent = Sent();
    WeightCheck check;
    // Another form of "down", such as packed, and a name that only the server knows.
    const Digests said = {{"norm", {digest, digest}}, {"down", {kOther}}, {"qkv", {kOther}}};
    EXPECT_EQ(check.Compare(said, sent), absl::OkStatus());
    Write(2, 3);
    FolderDigests next = Sent();
    EXPECT_THAT(check.Compare({{"norm", {digest, digest}}, {"down", {kOther}}, {"qkv", {std::string(64, '1')}}}, next),
                Fails(kWrong, {"1 of 1", "norm"}));
  }
}

TEST_F(WeightCheckTest, RefusesAServerWithNoneOfTheWeights) {
  Write(1, -0.3F);
  FolderDigests sent = Sent();
  EXPECT_THAT(check_.Compare({{"norm", {kOther}}, {"down", {kOther}}}, sent), Fails(kWrong, {"all 2 weights"}));
  // One rank of two.
  EXPECT_THAT(check_.Compare({{"norm", {kF32, kOther}}}, sent), Fails(kWrong, {"all 1 weights"}));
  EXPECT_EQ(check_.Compare({{"unknown", {kOther}}}, sent), absl::OkStatus()) << "has none of them";
}

TEST_F(WeightCheckTest, SeesThatNothingHasArrivedWhereHashesAreNotOurs) {
  Write(1, -0.3F);
  FolderDigests sent = Sent();
  const Digests said = {{"norm", {"0123456789abcdef"}}};
  EXPECT_EQ(check_.Compare(said, sent), absl::OkStatus());
  EXPECT_EQ(check_.Compare(said, sent), absl::OkStatus()) << "the same again";
  Write(1, -0.31F);
  FolderDigests next = Sent();
  EXPECT_THAT(check_.Compare(said, next), Fails(kWrong, {"all 1 weights", "as before"}));
  EXPECT_EQ(check_.Compare({{"norm", {"1123456789abcdef"}}}, next), absl::OkStatus());
}

TEST_F(WeightCheckTest, KnowsSha256ByItsBeginning) {
  Write(1, -0.3F);
  FolderDigests sent = Sent();
  EXPECT_EQ(check_.Compare({{"norm", {std::string(kBF16).substr(0, 16)}}}, sent), absl::OkStatus());
  Write(2, 3);
  FolderDigests next = Sent();
  EXPECT_THAT(check_.Compare({{"norm", {"1123456789abcdef"}}}, next), Fails(kWrong, {"norm"}));
}

}  // namespace
}  // namespace tdock::trainer
