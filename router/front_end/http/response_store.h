// Finished answers of the responses endpoint, so that a client can name one instead of sending its
// conversation again. In memory, of this router alone, and bounded in number and bytes: where a
// bound is reached, whoever keeps most loses the one unused for longest.
//
// Thread safety: any thread. Invariants: an owner sees what it kept itself and nothing else; the
// bounds hold after every call.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace tandem::router {

class ResponseStore {
 public:
  struct Options {
    int64_t responses_max = 1024;           // 0: nothing is kept
    int64_t bytes_max = int64_t{64} << 20;  // of texts, and kOverheadBytes for each response
  };
  static constexpr int64_t kOverheadBytes = 512;

  // Who asks: an API key, or null where there are none.
  using Owner = const void*;
  struct Kept {
    std::string object;  // the response object as it was sent
    std::string items;   // its conversation up to its output: a JSON list of items
  };
  struct Counts {
    int64_t responses = 0, bytes = 0;  // kept now
    int64_t dropped = 0;               // made room, or were too large to be kept
  };

  explicit ResponseStore(const Options& options) : options_(options) {}

  bool on() const { return options_.responses_max > 0; }
  int64_t responses_max() const { return options_.responses_max; }
  // Replaces what the owner kept under this id.
  void Keep(Owner owner, const std::string& id, Kept kept);
  // Null when it is not here. What is found is the last to make room. Shared: it outlives Erase.
  std::shared_ptr<const Kept> Find(Owner owner, const std::string& id);
  // Whether it was here.
  bool Erase(Owner owner, const std::string& id);
  Counts counts() const;
  // In Prometheus' text format.
  std::string MetricsText() const;

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const Kept> kept;
    int64_t bytes = 0;
  };
  struct Shelf {
    // Bound: responses_max, of all shelves together. The last used first.
    std::list<Entry> entries;
    // Bound: as entries.
    absl::flat_hash_map<std::string, std::list<Entry>::iterator> by_id;
    int64_t bytes = 0;
  };

  bool Remove(Owner owner, const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  // Bound: the API keys; one that is empty is removed.
  absl::flat_hash_map<Owner, Shelf> shelves_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router
