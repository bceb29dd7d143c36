/*
 * The library's calls of the system, led elsewhere through the list of functions that it imports.
 */
#ifndef IMPORTS_HPP
#define IMPORTS_HPP

#include "loopback.hpp"

#include <cstring>

namespace {

/* Lead the library's calls of this function to that one. Returns the function. */
template <typename Function> inline Function lead(const char *name, Function elsewhere) {
    HMODULE library = GetModuleHandleA("socknotify.dll");
    require(library != nullptr, "the library is loaded");
    BYTE *base = reinterpret_cast<BYTE *>(library);
    IMAGE_DOS_HEADER *header = reinterpret_cast<IMAGE_DOS_HEADER *>(base);
    IMAGE_NT_HEADERS *headers = reinterpret_cast<IMAGE_NT_HEADERS *>(base + header->e_lfanew);
    DWORD imports = headers->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_IMPORT].VirtualAddress;
    IMAGE_IMPORT_DESCRIPTOR *from = reinterpret_cast<IMAGE_IMPORT_DESCRIPTOR *>(base + imports);
    for (; from->Name != 0; from += 1) {
        IMAGE_THUNK_DATA *names = reinterpret_cast<IMAGE_THUNK_DATA *>(base + from->OriginalFirstThunk);
        IMAGE_THUNK_DATA *places = reinterpret_cast<IMAGE_THUNK_DATA *>(base + from->FirstThunk);
        for (; names->u1.AddressOfData != 0; names += 1, places += 1) {
            if (IMAGE_SNAP_BY_ORDINAL(names->u1.Ordinal)) {
                continue;
            }
            IMAGE_IMPORT_BY_NAME *import =
                reinterpret_cast<IMAGE_IMPORT_BY_NAME *>(base + names->u1.AddressOfData);
            if (std::strcmp(reinterpret_cast<const char *>(import->Name), name) != 0) {
                continue;
            }
            Function found = reinterpret_cast<Function>(places->u1.Function);
            DWORD before;
            require(VirtualProtect(places, sizeof *places, PAGE_READWRITE, &before), "VirtualProtect");
            places->u1.Function = reinterpret_cast<ULONG_PTR>(elsewhere);
            VirtualProtect(places, sizeof *places, before, &before);
            return found;
        }
    }
    require(false, "the function is imported");
    return nullptr;
}

using Remove = LONG(NTAPI *)(HANDLE, OVERLAPPED_ENTRY *, ULONG, ULONG *, LARGE_INTEGER *, BOOLEAN);

/* The library's waits of a second or more. */
struct LongWaits {
    Remove systems;
    volatile LONG threads;
};

inline LongWaits &long_waits() {
    static LongWaits waits = {nullptr, 0};
    return waits;
}

/* A thread that comes here is in a port that the library has found already. */
inline LONG NTAPI count_long_waits(HANDLE port, OVERLAPPED_ENTRY *entries, ULONG room, ULONG *count, LARGE_INTEGER *timeout,
                                   BOOLEAN alertable) {
    constexpr LONGLONG second = 10000000;
    LONG is_long = timeout == nullptr || timeout->QuadPart <= -second;
    InterlockedExchangeAdd(&long_waits().threads, is_long);
    LONG status = long_waits().systems(port, entries, room, count, timeout, alertable);
    InterlockedExchangeAdd(&long_waits().threads, -is_long);
    return status;
}

inline void wait_until_they_wait(LONG threads) {
    for (double begin = now(); long_waits().threads < threads; Sleep(1)) {
        require(now() - begin < patience, "the threads wait");
    }
}

} // namespace

#endif // IMPORTS_HPP
