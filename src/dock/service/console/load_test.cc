#include "dock/service/console/load.h"

#include <gtest/gtest.h>

#include <sstream>

#include "core/base/testing/patience.h"
#include "tdock/local_dock.h"

namespace tdock::console {
namespace {

TEST(Load, PutsWhatItSays) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  std::ostringstream out;
  // Its time may be over before its first put.
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Load(*dock, {.rows = 3, .columns = 2, .cell_bytes = 8, .duration = absl::Milliseconds(5)}, out),
              absl::OkStatus());
    return dock->GetStatus("load")->rows > 0;
  }));
  const PartitionStatus status = *dock->GetStatus("load");
  EXPECT_EQ(status.rows % 3, 0);
  EXPECT_EQ(status.columns.size(), 2u);
  EXPECT_TRUE(out.str().ends_with(" rows/s\n")) << out.str();
}

TEST(Load, RefusesSizesThatCannotBe) {
  const std::unique_ptr<Dock> dock = MakeLocalDock();
  std::ostringstream out;
  for (const LoadOptions& options : {LoadOptions{.rows = 0}, LoadOptions{.columns = -1}, LoadOptions{.cell_bytes = 6},
                                     LoadOptions{.rows = int64_t{1} << 40}}) {
    EXPECT_EQ(Load(*dock, options, out).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace tdock::console
