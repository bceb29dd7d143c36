/* What the library that is called at the process's end and the program that ends have in common. */
#include <socknotify.h>

typedef void (*watch_function)(HANDLE, SOCKET);
