// What stands between a dock and its plain twin (slow_dock.h): cells for numbers, and whether answers agree. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dock/testing/slow_table.h"
#include "tdock/column.h"

namespace tdock::dock {

// Columns of each kind, made from numbers so that a cell can be checked against its number.
inline Column Encode(const std::string& name, const std::vector<int64_t>& numbers) {
  if (name == "dense" || name == "note") return *Column::FromValues<int64_t>(numbers);
  if (name == "ragged") {
    std::vector<std::vector<int64_t>> rows;
    for (int64_t n : numbers) rows.emplace_back(static_cast<size_t>(n % 5), n);
    return Column::FromRows(rows);
  }
  if (name == "text") {
    std::vector<std::string> rows;
    for (int64_t n : numbers) rows.push_back(std::string(static_cast<size_t>(n % 3), 'x') + std::to_string(n));
    return Column::FromStrings(rows);
  }
  std::vector<int64_t> values;  // 800 bytes a row, so that blocks fill up
  for (int64_t n : numbers) values.insert(values.end(), 100, n);
  return *Column::FromValues<int64_t>(values, {100});
}

inline ColumnType TypeOf(const std::string& name) { return Encode(name, {1}).type(); }

inline void ExpectEqual(const Column& a, const Column& b) {
  ASSERT_EQ(a.rows(), b.rows());
  for (int64_t row = 0; row < a.rows(); ++row) {
    ASSERT_TRUE(std::ranges::equal(a.RowBytes(row), b.RowBytes(row))) << row;
  }
}

inline testing::AssertionResult Agree(const absl::Status& status, const Refusals& refusals) {
  if (status.ok() ? refusals.empty() : refusals.contains(status.code())) return testing::AssertionSuccess();
  auto failure = testing::AssertionFailure() << "the dock says " << status << ", its twin";
  for (absl::StatusCode code : refusals) failure << " " << code;
  return failure;
}

}  // namespace tdock::dock
