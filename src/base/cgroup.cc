#include "base/cgroup.h"

#include <cstdio>

namespace cutaway {
namespace {

bool has_controller(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    const size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == wanted) return true;
    if (comma == std::string_view::npos) break;
    controllers.remove_prefix(comma + 1);
  }
  return false;
}

void add_with_ancestors(const std::string& mount, std::string path, bool v2,
                        std::vector<CgroupFolder>& out) {
  for (;;) {
    out.push_back({mount + path, v2});
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return;
    path.resize(slash);
  }
}

}  // namespace

std::string read_small_file(const std::string& path) {
  std::string text;
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, n);
  std::fclose(file);
  return text;
}

std::vector<CgroupFolder> cgroup_folders(const std::string& root, std::string_view controller) {
  std::vector<CgroupFolder> out;
  const std::string groups = read_small_file(root + "/proc/self/cgroup");
  const std::string mount = root + "/sys/fs/cgroup";
  // Lines are "id:controllers:path"; v2's is "0::path".
  for (size_t begin = 0; begin < groups.size();) {
    size_t end = groups.find('\n', begin);
    if (end == std::string::npos) end = groups.size();
    const std::string line = groups.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers.empty()) {
      add_with_ancestors(mount, path, true, out);
    } else if (has_controller(controllers, controller)) {
      // Mounted under all the names of its line, or under its own.
      add_with_ancestors(mount + "/" + controllers, path, false, out);
      if (controllers != controller) {
        add_with_ancestors(mount + "/" + std::string(controller), path, false, out);
      }
    }
  }
  return out;
}

}  // namespace cutaway
