// Shows how far a node is with its weights. On a terminal it is a bar that goes once it is full. A
// program that draws one bar for several nodes gets lines of the log:
//   loading weights stage=packing percent=40
// Thread safety: any thread. Owner: the node process, while its engine loads.
#pragma once

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/engine/load_progress.h"

namespace tandem::node {

class LoadingBar {
 public:
  enum class Form { kNone, kTerminal, kLines };
  // `choice`: "auto" is a bar where standard error is a terminal and the log is text; "lines" and
  // "off" are the other two.
  static Form FormOf(const std::string& choice, const std::string& log_format);

  LoadingBar(Form form, std::string node) : form_(form), node_(std::move(node)) {}

  void Show(const engine::LoadProgress& progress);

 private:
  const Form form_;
  const std::string node_;
  absl::Mutex mutex_;
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int percent_ ABSL_GUARDED_BY(mutex_) = -1;  // last shown
  std::string over_ ABSL_GUARDED_BY(mutex_);  // the last stage that has ended
};

}  // namespace tandem::node
