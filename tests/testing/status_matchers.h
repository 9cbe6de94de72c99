// Matchers for absl::Status and absl::StatusOr, which Debian's Abseil lacks.
//   EXPECT_OK(expr);  ASSERT_OK(expr);
//   EXPECT_THAT(expr, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("block 17")));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::testing {

inline const absl::Status& GetStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << GetStatus(arg).ToString();
  return GetStatus(arg).ok();
}

MATCHER_P2(StatusIs, code, message_matcher, "has the status code and message") {
  *result_listener << GetStatus(arg).ToString();
  return GetStatus(arg).code() == code &&
         ::testing::ExplainMatchResult(message_matcher, std::string(GetStatus(arg).message()),
                                       result_listener);
}

}  // namespace tandem::testing

#define EXPECT_OK(expression) EXPECT_THAT(expression, ::tandem::testing::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT(expression, ::tandem::testing::IsOk())
// Declares `lhs` from a StatusOr, failing the test when it holds an error.
#define ASSERT_OK_AND_ASSIGN(lhs, expression) \
  ASSERT_OK_AND_ASSIGN_IMPL_(TANDEM_TEST_CONCAT_(status_or_, __LINE__), lhs, expression)
#define ASSERT_OK_AND_ASSIGN_IMPL_(temporary, lhs, expression) \
  auto temporary = (expression);                               \
  ASSERT_OK(temporary.status());                               \
  lhs = std::move(temporary).value()
#define TANDEM_TEST_CONCAT_(a, b) TANDEM_TEST_CONCAT_INNER_(a, b)
#define TANDEM_TEST_CONCAT_INNER_(a, b) a##b
