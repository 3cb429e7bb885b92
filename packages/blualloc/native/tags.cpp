#include "tags.h"

#include <cstddef>
#include <string>
#include <unordered_set>

namespace blualloc {
namespace {

// A program that makes a new tag for every allocation must not grow for ever.
constexpr size_t kMaxTags = 1 << 16;

struct TagTable {
  std::mutex mutex;
  std::unordered_set<std::string> tags;  // nodes: the addresses of the strings stay
};

// Never destroyed, because statics of other libraries may free memory at exit.
TagTable& table() {
  static TagTable* const instance = new TagTable();
  return *instance;
}

}  // namespace

std::mutex& tag_mutex() { return table().mutex; }

const char* intern_tag(const char* tag) {
  if (tag == nullptr || *tag == '\0') {
    return "untagged";
  }
  TagTable& all = table();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.tags.find(tag);
  if (found != all.tags.end()) {
    return found->c_str();
  }
  return all.tags.size() < kMaxTags ? all.tags.emplace(tag).first->c_str() : "other";
}

}  // namespace blualloc
