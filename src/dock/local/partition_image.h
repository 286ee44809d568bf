// A partition as bytes: what Dock::ExportPartition returns. docs/partition-image.md describes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dock/table/table_image.h"
#include "tdock/column.h"
#include "tdock/options.h"
#include "tdock/rows.h"

namespace tdock::dock {

inline constexpr uint64_t kPartitionImageVersion = 1;
inline constexpr size_t kPartitionImageHeadBytes = 64;

struct PartitionImage {
  // The cells of one column, of ascending rows: where `partial`, `versions` and `writers` have one for each.
  struct Cells {
    std::vector<RowId> rows = {};
    std::vector<bool> partial = {};
    std::vector<int64_t> versions = {};
    // Positions in `writers`, from 1 on; 0: put without a lease.
    std::vector<uint32_t> writers = {};
    // Their bytes: views of the dock's, as the only column; or in the image. Not looked at if the column has no type.
    std::variant<Rows, Column> values = {};
  };

  PartitionOptions options = {};
  // Without cells.
  TableImage table = {};
  std::vector<std::string> writers = {};
  // Of cells that were removed with their rows (see Budget).
  int64_t gone_bytes = 0;
  // By column of the table.
  std::vector<Cells> cells = {};

  TDOCK_FIELDS(PartitionImage, options, table, writers, gone_bytes, cells)
};

// Equal images make equal bytes. Copies the cells column by column, so that it needs little memory beyond the result.
absl::StatusOr<std::string> EncodePartitionImage(const PartitionImage& image);

// The cells refer to `bytes`. InvalidArgument for bytes that are no image; FailedPrecondition for a later version;
// DataLoss for an image that is truncated or damaged. Whether such a partition can be is for Table::Restore() to say;
// but cells are valid for their columns, and pieces for their cells.
absl::StatusOr<PartitionImage> DecodePartitionImage(absl::string_view bytes);

}  // namespace tdock::dock
