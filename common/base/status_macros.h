// RETURN_IF_ERROR and ASSIGN_OR_RETURN: the only control-flow macros of the code base.
// Thread safety: macros without state.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates an absl::Status and returns it from the enclosing function unless it is OK.
#define RETURN_IF_ERROR(expression)                                                              \
  do {                                                                                           \
    if (absl::Status tandem_status_ = (expression); !tandem_status_.ok()) return tandem_status_; \
  } while (false)

// Evaluates an absl::StatusOr; returns its error, or moves its value into `lhs` (which may
// declare).
#define ASSIGN_OR_RETURN(lhs, expression) \
  TANDEM_ASSIGN_OR_RETURN_IMPL_(TANDEM_CONCAT_(tandem_status_or_, __LINE__), lhs, expression)
#define TANDEM_ASSIGN_OR_RETURN_IMPL_(temporary, lhs, expression) \
  auto temporary = (expression);                                  \
  if (!temporary.ok()) return std::move(temporary).status();      \
  lhs = std::move(temporary).value()
#define TANDEM_CONCAT_(a, b) TANDEM_CONCAT_INNER_(a, b)
#define TANDEM_CONCAT_INNER_(a, b) a##b
