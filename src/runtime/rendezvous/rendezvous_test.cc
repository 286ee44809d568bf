#include "runtime/rendezvous/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/base/testing/fails.h"
#include "runtime/launch/port.h"

namespace tdock::runtime {
namespace {

using Code = absl::StatusCode;

TEST(Rendezvous, ARankThatNobodyAnswersSaysWhere) {
  const absl::StatusOr<int> port = FreePort();
  ASSERT_TRUE(port.ok()) << port.status();
  const auto opened = Rendezvous::Open({.rank = 1, .world_size = 2, .master_addr = "127.0.0.1", .master_port = *port},
                                       absl::Milliseconds(300));
  EXPECT_THAT(opened.status(),
              Fails(Code::kUnavailable, {"rank 1", absl::StrCat("rank 0 at 127.0.0.1:", *port), "300ms"}));
}

// One that is reserved for documentation.
TEST(Rendezvous, RankZeroAtAnAddressThatIsNotItsOwnSaysSo) {
  const absl::StatusOr<int> port = FreePort();
  ASSERT_TRUE(port.ok()) << port.status();
  const auto opened = Rendezvous::Open(
      {.rank = 0, .world_size = 2, .master_addr = "198.51.100.1", .master_port = *port}, absl::Milliseconds(300));
  EXPECT_THAT(opened.status(),
              Fails(Code::kUnavailable, {"rank 0", absl::StrCat("198.51.100.1:", *port), "MASTER_ADDR must"}));
}

TEST(AddressTowardsRank0, IsTheOneOfTheInterfaceThatReachesIt) {
  for (const char* address : {"127.0.0.1", "127.0.0.5"}) {
    const auto own = AddressTowardsRank0({.rank = 1, .master_addr = address, .master_port = 1});
    ASSERT_TRUE(own.ok()) << own.status();
    EXPECT_EQ(*own, "127.0.0.1");
  }
}

// What /etc/hosts of many machines says of their own names.
TEST(AddressTowardsRank0, LeadsBeyondTheMachineWhereOtherRanksAre) {
  const std::string here = "LOCALHOST";  // by its letters not known as what it is
  const auto alone =
      AddressTowardsRank0({.rank = 1, .world_size = 2, .local_world_size = 2, .master_addr = here, .master_port = 1});
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_THAT(*alone, testing::AnyOf("127.0.0.1", "::1"));
  const auto own =
      AddressTowardsRank0({.rank = 1, .world_size = 4, .local_world_size = 2, .master_addr = here, .master_port = 1});
  if (own.ok()) {
    EXPECT_THAT(*own, testing::AllOf(testing::Not(testing::StartsWith("127.")), testing::Ne("::1")));
  } else {
    EXPECT_THAT(own.status(), Fails(Code::kUnavailable, {"rank 1", here, "loopback"}));
  }
}

TEST(AddressTowardsRank0, NamesWhatHasNoAddressOrNoWayToIt) {
  // An interface that is not there, and a name that no service may know.
  for (const char* address : {"fe80::1%none0", "nowhere.invalid"}) {
    EXPECT_THAT(AddressTowardsRank0({.rank = 1, .master_addr = address, .master_port = 1}).status(),
                Fails(Code::kUnavailable, {"rank 1", address, "MASTER_ADDR"}));
  }
}

}  // namespace
}  // namespace tdock::runtime
