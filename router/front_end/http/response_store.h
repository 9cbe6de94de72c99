// Keeps finished answers of the responses endpoint, so that a client can refer to one instead of
// sending its conversation again. It lies in the memory of one router and is bounded in number and
// bytes. When a bound is exceeded, the owner with the most responses (or bytes) loses its least
// recently used one.
// Thread safety: any thread.
// Owner: HttpApi.
// Invariants: an owner sees only what it kept itself; the bounds hold after every call.
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
    int64_t bytes_max = int64_t{64} << 20;  // texts, and kOverheadBytes for each response
  };
  static constexpr int64_t kOverheadBytes = 512;

  // The tenant's name; empty in a router without keys.
  using Owner = std::string;
  struct Kept {
    std::string object;  // the response object as it was sent
    std::string items;   // its conversation up to its output: a JSON list of items
  };
  struct Counts {
    int64_t responses = 0, bytes = 0;  // kept now
    int64_t dropped = 0;               // evicted, or too large to keep
  };

  explicit ResponseStore(const Options& options) : options_(options) {}

  bool on() const { return options_.responses_max > 0; }
  int64_t responses_max() const { return options_.responses_max; }
  // Keeps a response; replaces one that the owner kept under the same id.
  void Keep(const Owner& owner, const std::string& id, Kept kept);
  // Null if there is none. Marks the response as just used. Shared because it may outlive Erase.
  std::shared_ptr<const Kept> Find(const Owner& owner, const std::string& id);
  // Returns whether there was one.
  bool Erase(const Owner& owner, const std::string& id);
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

  bool Remove(const Owner& owner, const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  // Bound: the tenants; a shelf that is empty is removed.
  absl::flat_hash_map<Owner, Shelf> shelves_ ABSL_GUARDED_BY(mutex_);
  Counts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router
