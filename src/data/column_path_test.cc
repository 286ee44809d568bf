#include "data/column_path.h"

#include <gtest/gtest.h>

namespace tdock::data {
namespace {

TEST(ColumnPath, AWholeNameComesBeforeAPath) {
  const ColumnSet columns = {"a", "a.b", "c"};
  EXPECT_EQ(FindColumn(columns, "c"), (ColumnPath{.column = "c", .inside = {}}));
  EXPECT_EQ(FindColumn(columns, "a.b"), (ColumnPath{.column = "a.b", .inside = {}}));
  EXPECT_EQ(FindColumn(columns, "a.b.c"), (ColumnPath{.column = "a.b", .inside = {"c"}}));
  EXPECT_EQ(FindColumn(columns, "a.x.y"), (ColumnPath{.column = "a", .inside = {"x", "y"}}));
  EXPECT_EQ(FindColumn(columns, "d.x"), (ColumnPath{.column = "d.x", .inside = {}}));
  EXPECT_EQ(FindColumn(columns, ""), (ColumnPath{.column = "", .inside = {}}));
  EXPECT_EQ(FindColumn(columns, ".a"), (ColumnPath{.column = ".a", .inside = {}}));
}

TEST(ColumnPath, LeadsIntoObjects) {
  const Value cell(Object{{"a", Value(Object{{"b", Value("x")}})}, {"n", Value()}, {"t", Value("y")}});
  const auto inside = [&](std::vector<std::string> path) { return CellInside(cell, path); };
  EXPECT_EQ(*inside({}), cell);
  EXPECT_EQ(*inside({"a", "b"}), Value("x"));
  EXPECT_EQ(*inside({"a", "c"}), Value());
  EXPECT_EQ(*inside({"n", "b"}), Value());
  EXPECT_EQ(inside({"t", "b"}).status().message(), "it holds text where an object with \"b\" is expected");
}

}  // namespace
}  // namespace tdock::data
