#include "trainer/distributed/rank_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tdock::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Of rank 0, which is this one, and of ranks 1, 2 …
absl::Status FirstOf(const std::vector<absl::Status>& statuses) {
  std::vector<RankCall::Answer> answers;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    absl::StatusOr<runtime::Value> value = runtime::Value();
    if (!statuses[rank].ok()) value = statuses[rank];
    answers.push_back(
        {.rank = static_cast<int>(rank), .who = rank == 0 ? "" : absl::StrCat("rank ", rank), .value = value});
  }
  return RankCall::FirstError(answers, kUpdateActor);
}

TEST(FirstError, IsTheOneThatSaysMost) {
  const absl::Status ok, told = absl::CancelledError("told to end"), left = absl::UnavailableError("rank 2 has left"),
                         late = absl::DeadlineExceededError("rank 2 is late"),
                         own = absl::DataLossError("a loss that is not finite");
  EXPECT_EQ(FirstOf({ok, ok, ok}), absl::OkStatus());
  // From what says least to what says most; which rank has it does not matter.
  const std::vector<absl::Status> statuses = {told, left, late, own};
  for (size_t more = 1; more < statuses.size(); ++more) {
    for (size_t less = 0; less < more; ++less) {
      for (const auto& answers : {std::vector<absl::Status>{statuses[less], statuses[more], ok},
                                  {statuses[less], ok, statuses[more]},
                                  {ok, statuses[less], statuses[more]},
                                  {statuses[more], statuses[less], statuses[less]},
                                  {ok, statuses[more], statuses[less]}}) {
        const absl::Status first = FirstOf(answers);
        EXPECT_EQ(first.code(), statuses[more].code());
        EXPECT_THAT(first.message(), HasSubstr(std::string(statuses[more].message())));
      }
    }
  }
}

TEST(FirstError, NamesTheRankAndTheMethod) {
  const absl::Status first =
      FirstOf({absl::UnavailableError("rank 2 has left"), absl::UnavailableError("rank 2 has left"),
               absl::DataLossError("a loss that is not finite")});
  EXPECT_THAT(first.message(), AllOf(HasSubstr("rank 2, update_actor"), HasSubstr("a loss that is not finite")));
  // Of this rank, whose stage says enough.
  EXPECT_EQ(FirstOf({absl::DataLossError("a loss"), absl::OkStatus()}), absl::DataLossError("a loss"));
}

TEST(FirstError, OfTwoThatSayAsMuchIsThatOfTheFirstRank) {
  EXPECT_THAT(FirstOf({absl::OkStatus(), absl::DataLossError("a"), absl::InternalError("b")}).message(),
              HasSubstr("rank 1, update_actor: a"));
}

}  // namespace
}  // namespace tdock::trainer
